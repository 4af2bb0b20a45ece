"""Where a run happens: in the calling process, in Ray's workers, or on people's devices.

An engine has two methods. ``begin()`` starts what takes seconds to start, while the run is still
being validated. ``run(overrides, folder)`` runs to the end and raises what ended it early. All of
them drive the same two Flower apps, so the same seed gives the same bits on every engine; Flower's
own simulation runtime drives these apps too, by `flwr run`.

``inline`` holds Flower's Grid in a process, which ``ray`` drives too. ``ray_start`` starts Ray, by
``ray_head``, which sees to it that no process is left, where that works.
``deploy`` stands by itself.
"""
