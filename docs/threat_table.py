"""The threat model's table of algorithms, from what each one's own file says.

``conf/strategy/x.yaml`` begins with comments; those that are table rows say what one client sends
in one round and against whom that is protected: ``# | `x` (weight) | contribution | guarantee |``.
``python -m docs.threat_table`` writes them into docs/threat-model.md.
"""

from __future__ import annotations

import re
from pathlib import Path

from fl_app.config.groups import CONF

PAGE = CONF.parent / "docs" / "threat-model.md"
_ROW = re.compile(r"^# (\| .* \|)$", re.MULTILINE)
_TABLE = re.compile(r"(\| `strategy=` [^\n]*\n\|---[^\n]*\n)((?:\| [^\n]*\n)*)")


def rows_of(path: Path) -> list[str]:
    """The rows in one algorithm's file."""
    return _ROW.findall(path.read_text(encoding="utf-8"))


def page() -> str:
    """The page with the table as the files have it."""
    files = sorted((CONF / "strategy").glob("*.yaml"))
    rows = "".join(f"{row}\n" for path in files for row in rows_of(path))
    text = PAGE.read_text(encoding="utf-8")
    return _TABLE.sub(lambda match: match[1] + rows, text, count=1)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
