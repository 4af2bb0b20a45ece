"""The report of a run or a sweep: one HTML page that needs nothing but a browser.

``reading`` takes what run folders hold, ``settings`` gathers runs that differ in their seed only,
``figures`` draws them with Altair (Vega-Lite), ``tables`` lists them, ``page`` puts all of it into
one file. ``disclosure`` writes one run's statement in the forms that registries and people read.
Everything but ``reading`` and ``disclosure`` needs the extra ``report``.

`murmur report` and `murmur statement` are in ``fl_app.tools.report``, and `fl_app.api` uses
``reading`` and ``tables``.
"""
