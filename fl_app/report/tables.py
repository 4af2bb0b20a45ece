"""A run or a sweep as tables: for each run, for each setting over its seeds, for each adversary.

Records are plain mappings from a heading to a value. ``references`` lays what papers and reference
implementations found (``published.yaml``) beside what the runs did, where their settings agree.
``as_csv``, ``as_latex`` and ``as_markdown`` write them for other programs.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas
import yaml

from fl_app.config.overrides import flat_texts
from fl_app.report.reading import Source, number
from fl_app.report.settings import Grouping, Setting, group, most_found, score_names
from fl_app.run.progress import show_epsilon
from murmur.common import csv_cell

Record = dict[str, Any]
_DIGITS = "0123456789-"
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
_TO_RAISED = str.maketrans(_DIGITS, _RAISED)
_FROM_RAISED = str.maketrans(_RAISED, _DIGITS)
_PUBLISHED = Path(__file__).with_name("published.yaml")


@dataclass(frozen=True)
class Comparison:
    """A reference result and the settings that it may be compared with.

    Attributes:
        about: its entry in ``published.yaml``.
        accuracy: round -> accuracy after it.
        settings: those that agree with it in all that counts.
        differences: setting's label -> what is not as there, though it may be compared.
        rows: (setting, quantity, reference, this run) for all that both sides have.
    """

    about: Mapping[str, Any]
    accuracy: dict[int, float]
    settings: tuple[Setting, ...]
    differences: dict[str, list[str]]
    rows: tuple[tuple[str, str, str, str], ...]


def run_records(source: Source) -> list[Record]:
    """One record for each run: its folder, what differs between runs, seed, state, figures.

    `fl_app.api.results` makes a frame of them, and `murmur report --csv` a file.
    """
    records = []
    for run, varied in zip(source.runs, group(source.runs).varied, strict=True):
        record: Record = {"run": run.name, "strategy": run.config.get("strategy", {}).get("name")}
        record |= {key: _plain(value) for key, value in varied.items() if key != "strategy"}
        record |= {"seed": run.seed, "state": run.state}
        if run.statement is not None:
            record["void"] = "; ".join(run.statement.doubts) or None
        for key, value in (run.metrics or {}).items():
            finite = number(value)
            record[key] = value if finite is None else finite
        records.append(record)
    return records


def setting_records(source: Source) -> list[Record]:
    """One record for each setting: its promise, mean and 95 % interval of its scores, ε, bytes.

    A score is that of the last five rounds; half of the interval is Student's t over the runs, and
    missing where there is one run only. Bytes are the mean over runs of what all clients have sent.

    Returns:
        Records with the same headings, for ``as_latex``, ``as_markdown`` and the page.
    """
    scores = score_names(source.runs)
    records = []
    for setting in group(source.runs).settings:
        record: Record = {"setting": setting.marked_label, "promise": setting.promise}
        record["runs"] = len(setting.started)
        for score in scores:
            spread = setting.spread(score)
            record[score] = spread.get("mean")
            record[f"{score} ±"] = None
            if spread.get("runs", 0) > 1:
                record[f"{score} ±"] = (spread["high"] - spread["low"]) / 2
        record["ε claimed"] = setting.claimed
        record["ε proven"] = None if setting.is_void else setting.proven
        record["ε under assumptions"] = None if setting.is_void else setting.assumed
        record["bytes up"] = setting.bytes_up
        records.append(record)
    return records


def budget_records(grouping: Grouping) -> list[Record]:
    """One record for each setting and adversary; the worst repetition.

    Its ``statement`` and ``guarantee`` are those of the repetition that states most, but for the
    proven total: that, what audits ``measured`` and what ``canaries`` found are the largest of all,
    and ``void`` has every reason of any.

    Args:
        grouping: settings without a statement are left out.
    """
    records = []
    for setting in grouping.settings:
        known = [run.statement for run in setting.runs if run.statement is not None]
        for index in range(max((len(s.guarantees) for s in known), default=0)):
            having = [s for s in known if len(s.guarantees) > index]
            worst = max(having, key=lambda s: s.guarantees[index].stated)
            seen = [s.guarantees[index] for s in having]
            proven = max(g.proven_total for g in seen)
            records.append(
                {
                    "setting": setting,
                    "statement": worst,
                    "guarantee": replace(worst.guarantees[index], proven_total=proven),
                    "measured": max((g.measured for g in seen if g.measured), default=None),
                    "canaries": most_found(seen),
                    "void": [reason for s in having for reason in s.doubts],
                }
            )
    return records


def references(grouping: Grouping) -> list[Comparison]:
    """All reference results of ``published.yaml`` for any of the settings."""
    entries = yaml.safe_load(_PUBLISHED.read_text(encoding="utf-8"))
    found = [_compare(entry, grouping) for entry in entries]
    return [comparison for comparison in found if comparison.settings]


def as_csv(records: Sequence[Record]) -> str:
    """Comma-separated values with a header.

    A text that a spreadsheet would compute is made plain (``murmur.common.csv_cell``).
    """
    frame = pandas.DataFrame(list(records), dtype=object)
    plain = frame.map(csv_cell).rename(columns=csv_cell)  # type: ignore[call-overload]
    return str(plain.to_csv(index=False, lineterminator="\n"))


def as_latex(records: Sequence[Record]) -> str:
    """A ``table`` of booktabs, with each interval beside its mean; its caption says the promise.

    Settings are grouped by their promise, which stands above them where there are several; a column
    that is empty in all of them is left out.

    Args:
        records: of ``setting_records``; a heading ``X ±`` is half of the interval of ``X``.
    """
    names = _columns(records)
    promises = _by_promise(records)
    lines = [r"\begin{table}", rf"\caption{{{_escaped(_caption(promises))}}}"]
    lines += [rf"\begin{{tabular}}{{l{'r' * (len(names) - 1)}}}", r"\toprule"]
    lines += [_line(map(_escaped, names)), r"\midrule"]
    for promise, members in promises.items():
        if len(promises) > 1:
            heading = rf"\multicolumn{{{len(names)}}}{{l}}{{\emph{{{_escaped(promise)}}}}}"
            lines.append(_line([heading]))
        lines += [_line(_escaped(_cell(record, name)) for name in names) for record in members]
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def as_markdown(records: Sequence[Record]) -> str:
    """The same as ``as_latex``: a table for each promise, under a caption that says it."""
    names = _columns(records)
    tables = []
    for promise, members in _by_promise(records).items():
        rows = [names, ["---", *["---:"] * (len(names) - 1)]]
        rows += [[_cell(record, name).replace("|", "¦") for name in names] for record in members]
        lines = [f"| {' | '.join(row)} |" for row in rows]
        tables.append("\n".join([_caption({promise: members}), "", *lines]) + "\n")
    return "\n".join(tables)


def _columns(records: Sequence[Record]) -> list[str]:
    """Headings of a printed table: what some record has, without promises and intervals."""
    filled = {name for record in records for name, value in record.items() if value is not None}
    every = dict.fromkeys(name for record in records for name in record)
    return [n for n in every if n in filled and n != "promise" and not n.endswith(" ±")]


def _by_promise(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each promise."""
    promises: dict[str, list[Record]] = {}
    for record in records:
        promises.setdefault(record.get("promise", ""), []).append(record)
    return promises


def _caption(promises: Mapping[str, Sequence[Record]]) -> str:
    """What the figures of a table are, and whom ε protects from whom."""
    text = "Mean of the last five rounds, ± half of the 95 % interval (Student's t) over seeds; "
    text += "ε and bytes are for the whole run."
    if len(promises) > 1:
        return f"{text} Each block names whom ε protects from whom: compare within a block only."
    return f"{text} Protected: {next(iter(promises))}."


def _line(cells: Iterable[str]) -> str:
    """A row of a LaTeX table."""
    return " & ".join(cells) + r" \\"


def _cell(record: Record, name: str) -> str:
    """One value in words, with its interval where it has one; "–" for none."""
    value = record.get(name)
    half = record.get(f"{name} ±")
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if name.startswith("ε"):
        return show_epsilon(value)
    if half is not None:
        return f"{value:.3f} ± {half:.3f}"
    if abs(value) < 1e4:
        return f"{value:.4g}"
    digits, _, exponent = f"{value:.2e}".partition("e")
    return f"{digits} × 10{str(int(exponent)).translate(_TO_RAISED)}"


def _escaped(text: str) -> str:
    """Text with letters of LaTeX for what a name may hold, so that nothing of it is a command."""
    for sign in r"\&%$#_{}":
        text = text.replace(sign, r"\textbackslash " if sign == "\\" else rf"\{sign}")
    # TeX itself reads "^^5c" as a backslash, before anything else.
    text = text.replace("^", r"\textasciicircum ").replace("~", r"\textasciitilde ")
    signs = {"ε": r"$\varepsilon$", "δ": r"$\delta$", "γ": r"$\gamma$", "∞": r"$\infty$"}
    signs |= {"±": r"$\pm$", "×": r"$\times$", "–": "--", "\u00a0": "~"}
    for sign, written in signs.items():
        text = text.replace(sign, written)
    powers = re.compile(f"[{_RAISED}]+")
    return powers.sub(lambda power: f"$^{{{power[0].translate(_FROM_RAISED)}}}$", text)


def _plain(text: str) -> Any:
    """A typed value as an integer or a number where it is one, else as typed."""
    try:
        if "." in text or "e" in text.lower():
            return float(text)
        return int(text)
    except ValueError:
        return text


def _compare(entry: Mapping[str, Any], grouping: Grouping) -> Comparison:
    """One entry of ``published.yaml`` beside the settings that agree with it.

    Args:
        entry: its ``where`` must be as in a setting, its ``detail`` may differ, and is then named.
        grouping: the report's settings.
    """
    matching = []
    differences = {}
    for setting in grouping.settings:
        config = flat_texts(setting.runs[0].config)
        if all(_same(config.get(key), value) for key, value in entry["where"].items()):
            matching.append(setting)
            apart = [
                f"{key} is {config.get(key, 'not set')} here and {value} there"
                for key, value in entry.get("detail", {}).items()
                if not _same(config.get(key), value)
            ]
            if apart:
                differences[setting.label] = apart
    accuracy = {int(n): float(value) for n, value in entry.get("accuracy", {}).items()}
    curves = None
    if accuracy:
        curves = grouping.curves("accuracy")
    rows = []
    for setting in matching:
        if curves is not None:
            own = curves[curves["key"] == setting.key].set_index("round")["mean"]
            rows += [
                (setting.label, f"accuracy after round {n}", f"{value:.3f}", f"{own[n]:.3f}")
                for n, value in accuracy.items()
                if n in own.index
            ]
        claimed = entry.get("epsilon_claimed")
        if claimed is not None and setting.claimed is not None:
            both = (show_epsilon(claimed), show_epsilon(setting.claimed))
            rows.append((setting.label, "ε claimed for the run", *both))
    return Comparison(entry, accuracy, tuple(matching), differences, tuple(rows))


def _same(have: str | None, wanted: Any) -> bool:
    """Whether a setting's text is the wanted value.

    Numbers are compared as numbers, to nine digits; what is not set is never the same.
    """
    if have is None:
        return False
    expected = number(wanted)
    if expected is None:
        return have == str(wanted)
    try:
        return math.isclose(float(have), expected, rel_tol=1e-9, abs_tol=1e-9)
    except ValueError:
        return False
