"""The page: everything that the report shows, in one file with its styles, script and charts.

Vega (0.9 MB) is written into the page once, so nothing is fetched; the page's content policy allows
its own two scripts, by their digests, and no request at all. Charts are interpreted, not compiled:
no text of a run is ever evaluated. Jinja escapes whatever stands in the page.
"""

import base64
import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from fl_app.api import (
    HEADING,
    INTERVAL,
    DataCard,
    Run,
    RunSet,
    flat_texts,
    format_epsilon,
    varied_values,
    version,
    whose_word,
    with_interval,
)
from murmur.files import replace_file
from murmur.format import format_number
from murmur.privacy.statement_text import NEIGHBOURS, UNITS, canary_finding
from murmur_report import charts, figures, settings, tables
from murmur_report.charts import ASSETS, Figure

_MAX_PARTITIONS = 8
_KINDS = {"proven": "proven", "assumed": "if its conditions hold"}  # what a stated ε is
_MAX_SCORES = 6  # beside the first


def page(
    source: RunSet,
    now: datetime,
    over: str | None = None,
    by: str | None = None,
    publish: bool = False,
) -> str:
    """The whole report as HTML.

    Args:
        source: the run or the sweep.
        now: when it is made.
        over: swept key along the first figure's axis; None: chosen by what was swept.
        by: swept key with a line for each value; None: the same.
        publish: whether facts of the data that no ε covers are left out.

    Raises:
        ConfigError: ``over`` or ``by`` was not swept.
    """
    grouping = settings.group(source.runs)
    scores = settings.score_names(source.runs)
    main = scores[0] if scores else "accuracy"
    shown, more, partitions = _figures(source, grouping, over, by)
    cards = _cards(grouping)
    if publish:
        partitions = []
        cards = {}
    script = (ASSETS / "page.js").read_text(encoding="utf-8")
    known = {
        "show": format_epsilon,
        "units": UNITS,
        "neighbours": NEIGHBOURS,
        "canary_finding": canary_finding,
        "format_number": format_number,
        "byte_count": charts.byte_count,
        "with_interval": with_interval,
        "states_of": lambda runs: Counter(run.state for run in runs),
    }
    every = [*shown, *more, *partitions]
    drawn = {
        "config": charts.CONFIG,
        "light": charts.LIGHT,
        "figures": {figure.id: asdict(figure) for figure in every},
    }
    text: str = _template(known).render(
        source=source,
        made=now.strftime("%Y-%m-%d %H:%M"),
        version=version(),
        style=charts.STYLE,
        scripts=[(text, _digest(text)) for text in (vega(), script)],
        score=main.replace("_", " "),
        main=main,
        grouping=grouping,
        varied=varied_values(source.runs),
        colours=charts.COLOURS,
        dashes=charts.DASHES,
        said=_KINDS,
        interval=INTERVAL,
        is_repeated=any(len(setting.final_scores(main)) > 1 for setting in grouping.settings),
        figures=shown,
        more=more,
        cards=cards,
        cards_heading=HEADING,
        partitions=partitions,
        drawn=drawn,
        budget=tables.budget_records(grouping),
        statements=_statements(grouping),
        common=_common(source.runs),
        made_by=_made_by(source.runs),
        references=tables.references(grouping),
        stopped=[run for run in source.runs if run.state != "finished" or run.problems],
        refusals=_refusals(grouping),
    )
    return text


def _template(known: Mapping[str, Any]) -> Template:
    """Returns ``page.html`` with these values and filters; whatever it prints is escaped."""
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= known
    environment.filters |= known
    return environment.get_template("page.html")


def every_figure(source: RunSet, over: str | None = None, by: str | None = None) -> list[Figure]:
    """All figures of the page; ``over`` and ``by`` as there."""
    parts = _figures(source, settings.group(source.runs), over, by)
    return [figure for part in parts for figure in part]


def _figures(
    source: RunSet, grouping: settings.Grouping, over: str | None, by: str | None
) -> tuple[list[Figure], ...]:
    """Returns the figures of the first score, of others, and of partitions."""
    scores = settings.score_names(source.runs)
    main = scores[0] if scores else "accuracy"
    found = [
        figures.swept_figure(grouping, main, over, by),
        figures.epsilon_figure(grouping, main),
        figures.rounds_figure(grouping, main, tables.references(grouping)),
        figures.bytes_figure(grouping, main),
        figures.spend_figure(grouping),
    ]
    shown = [figure for figure in found if figure is not None]
    others = [figures.rounds_figure(grouping, score) for score in scores[1 : 1 + _MAX_SCORES]]
    more = [figure for figure in others if figure is not None]
    return shown, more, _partitions(grouping)


@cache
def vega() -> str:
    """The scripts of Vega, Vega-Lite and vega-embed as one.

    They are made in seconds, once a machine, and kept in the user's cache folder (XDG_CACHE_HOME,
    ~/.cache), for this version of vl-convert.
    """
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    file = cache_home / "murmur" / f"vega-{metadata.version('vl-convert-python')}.js"
    if file.exists():
        return file.read_text(encoding="utf-8")
    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    bundle = bundle.replace("\r", "").replace("</script", r"<\/script").replace("<!--", r"<\!--")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, bundle.encode())
    except OSError:
        pass  # a home that cannot be written costs seconds each time, and no report
    return bundle


def _digest(script: str) -> str:
    """SHA-256 of a script in base64, as a content policy names it."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _statements(grouping: settings.Grouping) -> list[tuple[str, str, str]]:
    """The statements in full: the first finished repetition's for each setting.

    Returns:
        (setting and seed, privacy.txt, on whose word it rests).
    """
    found = []
    for setting in grouping.settings:
        for run in [r for r in setting.runs if r.statement_text][:1]:
            name = setting.label
            if len(setting.runs) > 1:
                name += f", seed {run.seed}"
            roster = flat_texts(run.config).get("federation.roster", "null")
            word = whose_word(run.folder, None if roster == "null" else Path(roster))
            found.append((name, run.statement_text, word))
    return found


def _partitions(grouping: settings.Grouping) -> list[Figure]:
    """A figure of each distinct partition, named by the first setting that has it.

    At most ``_MAX_PARTITIONS`` are drawn, each by the first repetition of a setting.
    """
    found: dict[tuple[Any, str], list[str]] = {}
    for setting in grouping.settings:
        for run in [r for r in setting.runs if r.partition][:1]:
            where = f"{_component(run, 'dataset')}, {_component(run, 'partition')}"
            labels = found.setdefault((run.partition, where), [])
            labels.append(f"{setting.label}, seed {run.seed}")
    drawn: list[Any] = []
    for (held, where), labels in list(found.items())[:_MAX_PARTITIONS]:
        name = labels[0]
        if len(labels) > 1:
            name += f", and {len(labels) - 1} more settings"
        drawn.append(figures.partition_figure(len(drawn), name, held, where))
    return drawn


def _cards(grouping: settings.Grouping) -> dict[DataCard, str]:
    """The data card of each setting's first run, each once: with the first setting's name."""
    found: dict[DataCard, str] = {}
    for setting in grouping.settings:
        for run in [r for r in setting.runs if r.card is not None][:1]:
            if run.card is not None and len(found) < _MAX_PARTITIONS:
                found.setdefault(run.card, f"{setting.label}, seed {run.seed}")
    return found


def _component(run: Run, name: str) -> str:
    """The class that a group of the configuration builds, such as ``IID``; "unknown" for none."""
    return str(flat_texts(run.config).get(f"{name}._target_", "unknown")).rsplit(".", 1)[-1]


def _common(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Settings that all runs share, as dotted keys and values."""
    configs = [flat_texts(run.config) for run in runs if run.config]
    if not configs:
        return []
    first = configs[0]
    return [(k, v) for k, v in first.items() if all(c.get(k) == v for c in configs)]


def _made_by(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Versions, commits and dates of the runs.

    Returns:
        (what, value): each value once; of dates the first and the last.
    """
    found: dict[str, set[str]] = {}
    for run in runs:
        known = flat_texts({key: value for key, value in run.provenance.items() if value})
        for key, value in known.items():
            found.setdefault(key.removeprefix("versions."), set()).add(value)
    shown = {key: ", ".join(sorted(values)) for key, values in found.items()}
    for key in ("started", "finished"):
        if len(dates := found.get(key, ())) > 1:
            shown[key] = f"{min(dates)} to {max(dates)}"
    return list(shown.items())


def _refusals(grouping: settings.Grouping) -> list[tuple[str, str, int]]:
    """Clients that failed or refused in a round.

    Returns:
        (setting, reason, how often), the most frequent fifty.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for setting in grouping.settings:
        for row in (row for run in setting.runs for row in run.rows):
            for reasons in (row.get("failed"), row.get("evaluation_failed")):
                if isinstance(reasons, Mapping):
                    counts.update((setting.label, str(why)) for why in reasons.values())
    return [(label, why, count) for (label, why), count in counts.most_common(50)]
