"""A run or a sweep as tables: for each run, for each setting over its seeds, for each adversary.

Records are plain mappings from a heading to a value. ``references`` lays what papers and reference
implementations found (``published.yaml``) beside what the runs did, where their settings agree.
``as_csv``, ``as_latex`` and ``as_markdown`` write them for other programs.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas
import yaml

from fl_app.api import INTERVAL, RunSet, flat_texts, format_epsilon, number, with_interval
from murmur.format import csv_cell
from murmur_report.settings import (
    FROM_RAISED,
    RAISED,
    Grouping,
    Setting,
    group,
    most_found,
    powers,
    score_names,
)

Record = dict[str, Any]
_POWER = re.compile(f"(?:([0-9.]+)[ \u00a0]×[ \u00a0])?10([{RAISED}]+)")
_FROM, _TO = " 95% from", " 95% to"  # of the interval of the column before
_CONDITION = "condition"
_APART = ("promise", _CONDITION)  # said by captions, headings and marks
# Of LaTeX's article, in points: the text's width, a small letter's at most on average, the space
# between columns.
_TEXT, _LETTER, _BETWEEN = 345.0, 4.8, 12.0
_SETTING = 80.0  # what a setting's name has at least, where it may be broken
_UNBROKEN = 20  # letters of a setting's name that stay in one line
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


def setting_records(source: RunSet) -> list[Record]:
    """One record for each setting: its promise, mean and 95 % interval of its scores, ε, bytes.

    A score is that of the last five rounds; its interval is Student's t over the runs, and missing
    where there is one run only. ε is the one that the promise is about, with its ``condition``;
    ``epsilon_records`` has the others. Bytes are the mean over runs of what all clients have sent.

    Returns:
        Records with the same headings, for ``as_latex``, ``as_markdown`` and the page.
    """
    scores = score_names(source.runs)
    records = []
    for setting in group(source.runs).settings:
        record: Record = {"setting": setting.marked_label, "promise": setting.promise}
        for place, score in enumerate(scores or ["accuracy"]):
            spread = setting.spread(score)
            name = score.replace("_", " ")
            record[name] = spread.get("mean")
            is_repeated = spread.get("runs", 0) > 1
            record[name + _FROM] = spread["low"] if is_repeated else None
            record[name + _TO] = spread["high"] if is_repeated else None
            if place == 0:
                record["ε"] = None if setting.is_void else setting.stated
                record[_CONDITION] = setting.kind
                record["runs"] = len(setting.started)
        record["bytes up"] = setting.bytes_up
        records.append(record)
    return records


def epsilon_records(source: RunSet) -> list[Record]:
    """One record for each setting with a statement: every ε of it; none of a void one."""
    records = []
    for setting in group(source.runs).settings:
        if setting.headlines:
            record: Record = {"setting": setting.marked_label, "promise": setting.promise}
            record["ε claimed"] = setting.claimed
            record["ε proven"] = None if setting.is_void else setting.proven
            record["ε under assumptions"] = None if setting.is_void else setting.assumed
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

    A text that a spreadsheet would compute is made plain (``murmur.format.csv_cell``).
    """
    frame = pandas.DataFrame(list(records), dtype=object)
    plain = frame.map(csv_cell).rename(columns=csv_cell)  # type: ignore[call-overload]
    return str(plain.to_csv(index=False, lineterminator="\n"))


def as_latex(records: Sequence[Record], name: str = "results") -> str:
    r"""Tables of booktabs and tabularx, as wide as the text; their captions say the promise.

    Settings are grouped by their promise, which stands above them where there are several; a column
    that is empty in all of them is left out. What does not fit beside the settings' names in an
    article of one column of ten points stands in a further table.

    Args:
        records: of ``setting_records`` or ``epsilon_records``.
        name: of the tables in ``\ref``, behind ``tab:``.
    """
    label = re.sub(r"[^0-9A-Za-z-]+", "-", name).strip("-") or "results"
    promises = _by_promise(records)
    tables = []
    for place, names in enumerate(_fitting(_columns(records), records)):
        ends = f"-{place + 1}" if place else ""
        right = "r" * (len(names) - 1)
        lines = [r"\begin{table}", r"\centering", r"\small"]
        lines.append(rf"\caption{{{_escaped(_caption(promises, names, records))}}}")
        lines.append(rf"\label{{tab:{label}{ends}}}")
        columns = rf"@{{}}>{{\raggedright\arraybackslash}}X{right}@{{}}"
        lines += [rf"\begin{{tabularx}}{{\textwidth}}{{{columns}}}", r"\toprule"]
        lines += [_line(map(_escaped, names)), r"\midrule"]
        for promise, members in promises.items():
            if len(promises) > 1:
                across = rf"\multicolumn{{{len(names)}}}{{@{{}}p{{\textwidth}}@{{}}}}"
                lines.append(_line([rf"{across}{{\emph{{{_escaped(promise)}}}}}"]))
            for record in members:
                first, *cells = (_escaped(_cell(record, column)) for column in names)
                lines.append(_line([_breakable(first), *cells]))
        lines += [r"\bottomrule", r"\end{tabularx}", r"\end{table}"]
        tables.append("\n".join(lines) + "\n")
    return "% Needs \\usepackage{booktabs,tabularx}\n" + "\n".join(tables)


def as_markdown(records: Sequence[Record]) -> str:
    """Renders ``records`` as Markdown: a table for each promise, under a caption that says it."""
    names = _columns(records)
    tables = []
    for promise, members in _by_promise(records).items():
        rows = [names, ["---", *["---:"] * (len(names) - 1)]]
        rows += [[_cell(record, name).replace("|", "¦") for name in names] for record in members]
        lines = [f"| {' | '.join(row)} |" for row in rows]
        caption = _caption({promise: members}, names, members)
        tables.append("\n".join([caption, "", *lines]) + "\n")
    return "\n".join(tables)


def _columns(records: Sequence[Record]) -> list[str]:
    """Headings of a printed table: what some record has, without promises and intervals."""
    filled = {name for record in records for name, value in record.items() if value is not None}
    every = dict.fromkeys(name for record in records for name in record)
    names = [name for name in every if name in filled and name not in _APART]
    return [name for name in names if not name.endswith((_FROM, _TO))]


def _fitting(names: Sequence[str], records: Sequence[Record]) -> Iterator[list[str]]:
    """``names`` in parts that are as wide as a text at most; each begins with the first."""
    first, *others = names
    words = (word for record in records for word in re.split(r"[ _.]", _cell(record, first)))
    longest = max((len(word) for word in words if len(word) <= _UNBROKEN), default=0)
    room = _TEXT - max(_SETTING, _LETTER * longest)
    part: list[str] = []
    left = room
    for name in others:
        letters = max(len(name), *(len(_cell(record, name)) for record in records))
        wide = _BETWEEN + _LETTER * letters
        if part and wide > left:
            yield [first, *part]
            part = []
            left = room
        part.append(name)
        left -= wide
    yield [first, *part]


def _breakable(name: str) -> str:
    """A setting's name in LaTeX, of which long parts may be broken into lines."""
    parts = []
    for part in name.split(" "):
        if len(part) > _UNBROKEN:
            part = part.replace("~", " ").replace(r"\_", r"\_\allowbreak ")
            part = re.sub(r"\.(?=[a-z])", r".\\allowbreak ", part)
        parts.append(part)
    return " ".join(parts)


def _by_promise(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each promise."""
    promises: dict[str, list[Record]] = {}
    for record in records:
        promises.setdefault(record.get("promise", ""), []).append(record)
    return promises


def _caption(
    promises: Mapping[str, Sequence[Record]], names: Sequence[str], records: Sequence[Record]
) -> str:
    """Returns a table's caption: its figures, and whom ε protects from whom."""
    parts = []
    if any(f"{name}{_FROM}" in record for record in records for name in names):
        parts.append(f"Mean of the last five rounds; {INTERVAL}.")
    if "ε" in names:
        marked = "; †: if the conditions of its privacy statement hold"
        parts.append(f"ε is for the whole run, and proven{marked * _has_conditions(records)}.")
    elif any(name.startswith("ε ") for name in names):
        parts.append(
            "Every ε of the whole run: as its paper claims, as proven without any assumption, and "
            "under those of the privacy statement."
        )
    if len(promises) > 1:
        parts.append("Each block names whom ε protects from whom: compare within a block only.")
    else:
        parts.append(f"Protected: {next(iter(promises))}.")
    return " ".join(parts)


def _has_conditions(records: Sequence[Record]) -> bool:
    """Returns whether any ε holds under conditions only."""
    return any(record.get(_CONDITION) == "assumed" for record in records)


def _line(cells: Iterable[str]) -> str:
    """A row of a LaTeX table."""
    return " & ".join(cells) + r" \\"


def _cell(record: Record, name: str) -> str:
    """One value in words, with its interval where it has one; "–" for none."""
    value = record.get(name)
    low = record.get(name + _FROM)
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if name == "ε" and record.get(_CONDITION) == "assumed" and value < math.inf:
        return f"{format_epsilon(value)}†"
    if name.startswith("ε"):
        return format_epsilon(value)
    if low is not None:
        return with_interval({"mean": value, "low": low, "high": record[name + _TO], "runs": 2})
    if abs(value) < 1e4:
        return f"{value:.4g}"
    return powers(f"{value:.2e}")


def _escaped(text: str) -> str:
    """Text with letters of LaTeX for what a name may hold, so that nothing of it is a command."""
    for sign in r"\&%$#_{}":
        text = text.replace(sign, r"\textbackslash " if sign == "\\" else rf"\{sign}")
    # TeX itself reads "^^5c" as a backslash, before anything else.
    text = text.replace("^", r"\textasciicircum ").replace("~", r"\textasciitilde ")
    text = _POWER.sub(_power, text)
    signs = {"ε": r"$\varepsilon$", "δ": r"$\delta$", "γ": r"$\gamma$", "∞": r"$\infty$"}
    signs |= {"±": r"$\pm$", "×": r"$\times$", "–": "--", "\u00a0": "~", "†": r"$^{\dagger}$"}
    signs["μ"] = r"$\mu$"
    for sign, written in signs.items():
        text = text.replace(sign, written)
    powers_alone = re.compile(f"[{RAISED}]+")
    return powers_alone.sub(lambda power: f"$^{{{power[0].translate(FROM_RAISED)}}}$", text)


def _power(found: re.Match[str]) -> str:
    """A power of ten of ``powers`` in LaTeX."""
    times = rf"{found[1]} \times " if found[1] else ""
    return f"${times}10^{{{found[2].translate(FROM_RAISED)}}}$"


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
            both = (format_epsilon(claimed), format_epsilon(setting.claimed))
            rows.append((setting.label, "ε claimed for the run", *both))
    return Comparison(entry, accuracy, tuple(matching), differences, tuple(rows))


def _same(have: str | None, wanted: Any) -> bool:
    """Returns whether a setting's text is the wanted value.

    Numbers are compared as numbers, to nine digits; a setting that is not set never matches.
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
