"""A run or a sweep as tables: a record for each run, a record for each setting over its seeds."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy.stats import t as student

from fl_app.report import series
from fl_app.report.reading import Source, number
from fl_app.report.settings import Setting, group
from murmur.common import csv_cell

Record = dict[str, Any]
CONFIDENCE = 0.95


def run_records(source: Source) -> list[Record]:
    """One record for each run: its folder, what differs between runs, seed, state, figures."""
    grouping = group(source.runs)
    return [
        {
            "run": run.name,
            "strategy": run.config.get("strategy", {}).get("name"),
            **{key: _plain(value) for key, value in varied.items() if key != "strategy"},
            "seed": run.seed,
            "state": run.state,
            **{key: _finite(value) for key, value in (run.metrics or {}).items()},
        }
        for run, varied in zip(source.runs, grouping.varied, strict=True)
    ]


def setting_records(source: Source) -> list[Record]:
    """One record for each setting: mean and 95 % interval of its scores over seeds, ε and bytes.

    A score is that of the last five rounds; half of the interval is Student's t over the runs, and
    missing where there is one run only.
    """
    scores = series.score_names(source.runs)
    records = []
    for setting in group(source.runs).settings:
        record: Record = {"setting": setting.label, "runs": len(setting.started)}
        for score in scores:
            record[score], record[f"{score} ±"] = interval(setting, score)
        record["ε claimed"] = series.claimed(setting)
        record["ε proven"] = series.proven(setting)
        sent = [series.total_bytes(run) for run in setting.started]
        record["bytes up"] = math.fsum(sent) / len(sent) if sent else None
        records.append(record)
    return records


def interval(setting: Setting, score: str) -> tuple[float | None, float | None]:
    """Mean of ``score`` over a setting's runs, and half of its 95 % interval."""
    values = [v for run in setting.started if (v := series.final(run, score)) is not None]
    if not values:
        return None, None
    mean, count = math.fsum(values) / len(values), len(values)
    if count < 2:
        return mean, None
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return mean, float(student.ppf((1 + CONFIDENCE) / 2, count - 1)) * deviation / math.sqrt(count)


def as_csv(records: Sequence[Record]) -> str:
    """Comma-separated values with a header; no cell is a formula."""
    names = list(dict.fromkeys(name for record in records for name in record))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writerow({name: csv_cell(name) for name in names})
    for record in records:
        writer.writerow({name: csv_cell(value) for name, value in record.items()})
    return text.getvalue()


def as_latex(records: Sequence[Record]) -> str:
    """A ``tabular`` of booktabs, with each interval beside its mean."""
    names = [n for n in dict.fromkeys(n for r in records for n in r) if not n.endswith(" ±")]
    lines = [
        rf"\begin{{tabular}}{{l{'r' * (len(names) - 1)}}}",
        r"\toprule",
        " & ".join(_escaped(name) for name in names) + r" \\",
        r"\midrule",
        *(" & ".join(_cell(record, name) for name in names) + r" \\" for record in records),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def draw(source: Source, path: Path) -> None:
    """The first score over rounds as a picture for print: mean and range over seeds."""
    import matplotlib
    from matplotlib.figure import Figure

    score = (series.score_names(source.runs) or ["accuracy"])[0]
    matplotlib.rcParams["svg.hashsalt"] = "murmur"  # the same runs give the same file
    figure = Figure(figsize=(5.5, 3.5), layout="constrained")
    axes = figure.subplots()
    for setting in group(source.runs).settings:
        curve = series.over_rounds(setting, score)
        rounds, spread = list(curve), list(curve.values())
        (line,) = axes.plot(rounds, [s.mean for s in spread], label=setting.label)
        low, high = [s.low for s in spread], [s.high for s in spread]
        axes.fill_between(rounds, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel="round", ylabel=score.replace("_", " "))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _cell(record: Record, name: str) -> str:
    value, half = record.get(name), record.get(f"{name} ±")
    if value is None:
        return "--"
    if isinstance(value, str):
        return _escaped(value)
    if math.isinf(value):
        return r"$\infty$"
    shown = f"{value:.4g}" if abs(value) < 1e4 else f"{value:.3e}"
    return shown if half is None else rf"${value:.3f} \pm {half:.3f}$"


def _escaped(text: str) -> str:
    for sign in r"\&%$#_{}":
        text = text.replace(sign, rf"\{sign}" if sign != "\\" else r"\textbackslash ")
    return text.replace("ε", r"$\varepsilon$").replace("±", r"$\pm$").replace("\u00a0", "~")


def _plain(text: str) -> Any:
    try:
        return float(text) if "." in text or "e" in text.lower() else int(text)
    except ValueError:
        return text


def _finite(value: Any) -> Any:
    return math.inf if value == "infinity" else value if number(value) is None else number(value)
