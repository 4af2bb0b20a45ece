"""The report of a run or a sweep: one HTML page that needs nothing but a browser.

``reading`` takes what run folders hold, ``settings`` gathers runs that differ in their seed only,
``figures`` draws them with Altair (Vega-Lite), ``tables`` lists them, ``page`` puts all of it into
one file. Everything but ``reading`` needs the extra ``report``.

`murmur report` and `murmur statement` are in ``fl_app.tools.report``, and `fl_app.api` uses
``reading`` and ``tables``.
"""

from pathlib import Path
from typing import Any

ASSETS = Path(__file__).with_name("assets")


def template(name: str, values: dict[str, Any], **how: Any) -> Any:
    """A template of ``assets/`` that knows these values and filters; ``how``: as Jinja has it."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **how,
    )
    environment.globals |= values
    environment.filters |= values
    return environment.get_template(name)
