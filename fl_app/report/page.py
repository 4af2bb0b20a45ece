"""The page: everything that the report says, put into one template with its styles and script."""

from __future__ import annotations

import base64
import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

import fl_app
from fl_app.report import series
from fl_app.report.charts import mark
from fl_app.report.figure_parts import Figure, show
from fl_app.report.privacy_figures import epsilon_figure, said_of, spend_figure
from fl_app.report.published import comparisons
from fl_app.report.reading import Run, Source
from fl_app.report.scales import byte_count
from fl_app.report.score_figures import bytes_figure, rounds_figure
from fl_app.report.settings import Grouping, Setting, flat, group
from murmur.learning.data.partitions import partition_picture

_ASSETS = Path(__file__).with_name("assets")
_SCRIPTS = ("zoom.js", "page.js")
_MOST_PARTITIONS = 8
_WORDS = {
    "replace_one": "one unit exchanged for another",
    "add_remove": "one unit more or less",
    "replace_special": "one unit exchanged for one that contributes nothing",
    "client": "everything that one client holds",
    "record": "one record",
}


@dataclass(frozen=True)
class Picture:
    """A partition's picture, inlined."""

    label: str
    alt: str
    uri: str


def page(source: Source, now: datetime) -> str:
    """The whole report as HTML."""
    grouping = group(source.runs)
    scores = series.score_names(source.runs)
    references = comparisons(grouping.settings)
    main = scores[0] if scores else "accuracy"
    drawn = [
        rounds_figure(grouping, main, references),
        epsilon_figure(grouping, main),
        bytes_figure(grouping, main),
        spend_figure(grouping),
    ]
    others = [rounds_figure(grouping, score) for score in scores[1:7]]
    shown = [figure for figure in drawn if figure is not None]
    more = [figure for figure in others if figure is not None]
    script = "".join((_ASSETS / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    environment = Environment(
        loader=FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(mark=mark, show=show, words=_words, said_of=said_of)
    return environment.get_template("page.html").render(
        source=source,
        title=f"{'Sweep' if source.is_sweep else 'Run'} {source.name}",
        made=now.strftime("%Y-%m-%d %H:%M"),
        version=fl_app.version(),
        style=(_ASSETS / "style.css").read_text(encoding="utf-8"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        states=Counter(run.state for run in source.runs),
        score=main.replace("_", " "),
        glance=[_glance(setting, main) for setting in grouping.settings],
        figures=shown,
        more=more,
        tips=_tips([*shown, *more]),
        budget=_budget(grouping),
        statements=_statements(grouping),
        pictures=_pictures(grouping),
        common=_common(source.runs),
        made_by=_made_by(source.runs),
        varied=_varied(source.runs, grouping),
        references=references,
        stopped=[run for run in source.runs if run.state != "finished" or run.problems],
        refusals=_refusals(grouping),
    )


def _glance(setting: Setting, score: str) -> dict[str, str]:
    """A setting's row in the summary."""
    states = Counter(run.state for run in setting.runs)
    end = series.final_spread(setting, score)
    sent = series.Spread.of(series.total_bytes(run) for run in setting.started)
    seconds = series.Spread.of(
        sum(float(row.get("seconds", 0)) for row in run.rows) for run in setting.started
    )
    return {
        "key": setting.key,
        "label": setting.label,
        "runs": ", ".join(f"{count} {state}" for state, count in states.items()),
        "score": "–" if end is None else f"{end.mean:.3f}",
        "range": "" if end is None or end.count == 1 else f"{end.low:.3f} to {end.high:.3f}",
        "claimed": show(series.claimed(setting)),
        "proven": "–" if series.proven(setting) is None else show(series.proven(setting)),
        "assumed": "–" if series.assumed(setting) is None else show(series.assumed(setting)),
        "sent": "–" if sent is None else byte_count(sent.mean),
        "seconds": "–" if seconds is None else f"{seconds.mean:,.3g}",
        "void": "yes" if any(r.statement and r.statement.void for r in setting.runs) else "",
    }


def _budget(grouping: Grouping) -> list[dict[str, Any]]:
    """One row for each setting and adversary; the worst repetition."""
    rows = []
    for setting in grouping.settings:
        told = [run.statement for run in setting.runs if run.statement is not None]
        for index in range(max((len(s.guarantees) for s in told), default=0)):
            having = [s for s in told if len(s.guarantees) > index]
            statement = max(having, key=lambda s: s.guarantees[index].proven_total)
            seen = [s.guarantees[index] for s in having]
            measured = [g.measured for g in seen if g.measured]
            rows.append(
                {
                    "setting": setting,
                    "statement": statement,
                    "guarantee": statement.guarantees[index],
                    "measured": max(measured, default=None),
                    "canaries": next((g.canaries for g in seen if g.canaries), None),
                    "void": [reason for s in having for reason in s.void],
                }
            )
    return rows


def _statements(grouping: Grouping) -> list[tuple[str, str]]:
    """(setting and seed, privacy.txt), the first finished repetition's for each setting."""
    return [
        (f"{s.label}, seed {run.seed}" if len(s.runs) > 1 else s.label, run.statement_text)
        for s in grouping.settings
        for run in [r for r in s.runs if r.statement_text][:1]
    ]


def _pictures(grouping: Grouping) -> list[Picture]:
    """Each distinct partition once; the first repetition's."""
    found: dict[tuple[Any, str], tuple[Run, list[str]]] = {}
    for setting in grouping.settings:
        for run in [r for r in setting.runs if r.partition][:1]:
            title = f"{_component(run, 'dataset')}, {_component(run, 'partition')}"
            found.setdefault((run.partition, title), (run, []))[1].append(setting.label)
    pictures = []
    for (partition, title), (run, labels) in list(found.items())[:_MOST_PARTITIONS]:
        counts = np.array(partition)
        title = f"{title}, {len(counts)} clients"
        alt = (
            f"Partition ({title}): above, how many examples each client holds; below, each class's "
            "share of the client's examples, stronger for more."
        )
        name = labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more"
        image = _inline(partition_picture(counts, title))
        pictures.append(Picture(f"{name}, seed {run.seed}", alt, image))
    return pictures


def _component(run: Run, group: str) -> str:
    return str(flat(run.config).get(f"{group}._target_", "unknown")).rsplit(".", 1)[-1]


def _inline(png: bytes) -> str:
    """A data URI with the picture in at most 64 colours: a quarter of the bytes, same look."""
    with Image.open(io.BytesIO(png)) as image:
        small = io.BytesIO()
        image.convert("RGB").quantize(64).save(small, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(small.getvalue()).decode()


def _common(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """What every run's configuration has in common."""
    configs = [flat(run.config) for run in runs if run.config]
    if not configs:
        return []
    first = configs[0]
    return [(k, v) for k, v in first.items() if all(c.get(k) == v for c in configs)]


def _made_by(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Versions, commits and dates of the runs, each value once."""
    found: dict[str, list[str]] = {}
    for run in runs:
        known = flat({k: v for k, v in run.provenance.items() if v})
        for key, value in known.items():
            found.setdefault(key.removeprefix("versions."), []).append(value)
    return [(key, _from_to(key, values)) for key, values in found.items()]


def _from_to(key: str, values: Sequence[str]) -> str:
    chosen = sorted(set(values))
    if key in ("started", "finished") and len(chosen) > 1:
        return f"{chosen[0]} to {chosen[-1]}"
    return ", ".join(chosen)


def _varied(runs: Sequence[Run], grouping: Grouping) -> tuple[list[str], list[dict[str, Any]]]:
    """(keys, rows): what differs between jobs, as typed or defaulted."""
    keys = list(grouping.varied[0]) if grouping.varied else []
    rows = [
        {
            "name": run.name,
            "state": run.state,
            "seed": run.seed,
            "values": [values[key] for key in keys],
            "rounds": f"{run.last_round} of {run.planned_rounds or '?'}",
        }
        for run, values in zip(runs, grouping.varied, strict=True)
    ]
    return keys, rows


def _refusals(grouping: Grouping) -> list[tuple[str, str, int]]:
    """(setting, reason, how often) for clients that failed or refused in a round."""
    counts: Counter[tuple[str, str]] = Counter()
    for setting in grouping.settings:
        for run in setting.runs:
            for row in run.rows:
                for name in ("failed", "evaluation_failed"):
                    counts.update((setting.label, str(why)) for why in _values(row.get(name)))
    return [(label, why, count) for (label, why), count in counts.most_common(50)]


def _values(mapping: Any) -> Iterable[Any]:
    return mapping.values() if isinstance(mapping, Mapping) else ()


def _tips(drawn: Sequence[Figure]) -> dict[str, Any]:
    """For the script: each chart's points, by its id in the page."""
    return {
        f"{figure.id}-{index}": panel.chart.tooltips()
        for figure in drawn
        for index, panel in enumerate(figure.panels, 1)
    }


def _words(value: str) -> str:
    return _WORDS.get(value, value.replace("_", " "))
