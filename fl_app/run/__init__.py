"""One run on the server's side: preparation, data, rounds, its folder, what a person sees.

In the order in which a run meets them:

* ``prepare``: overrides become a validated run with a folder.
* ``population``: the data set, the public pool and each client's share.
* ``server``, ``canaries``: build the strategy.
* ``hosts``: build models and clients, and what answers for them in a simulation.
* ``experiment``: the rounds, on the server.
* ``results``: the run's folder, with its checkpoint. ``model_folder``: what it has learnt.
* ``offer``: sends that to the devices that took part.
* ``progress``: what a person sees, read from these files alone.

``fl_app.engines`` starts the server's and the clients' half. With ``engine=deploy`` the rounds run
where the SuperLink is, else in `murmur`'s own process.
"""
