"""What `murmur --help` says: read from conf/ as text, without the seconds that composing takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

CONF = Path(__file__).resolve().parents[2] / "conf"
_DEFAULT = re.compile(r"^  - (\w+): (\w+)$", re.MULTILINE)


def help_text(tools: Mapping[str, str]) -> str:
    """Tools, groups with their choices, and every setting of the default configuration."""
    root = (CONF / "config.yaml").read_text(encoding="utf-8")
    defaults = dict(_DEFAULT.findall(root))
    parts = [
        "murmur key=value ...       one run: a group's choice (strategy=nbafl) or a value (seed=2)",
        "murmur -m key=a,b ...      a sweep over values",
        "murmur key=value ... -c job    print the configuration that would run",
        "murmur ... --config-dir DIR    with your own classes: DIR/conf, and Python files by it",
        "murmur ... --wide              tables are not cut at the screen's edge",
        "",
        *(f"murmur {name:<12} {what}" for name, what in tools.items()),
        "\nGroups and their choices, the default in brackets:\n",
    ]
    for folder in sorted(path for path in CONF.iterdir() if path.is_dir()):
        names = sorted(str(p.relative_to(folder).with_suffix("")) for p in folder.rglob("*.yaml"))
        chosen = defaults.get(folder.name)
        shown = ", ".join(f"[{name}]" if name == chosen else name for name in names)
        if folder.name != "hydra":
            parts.append(f"  {folder.name}: {shown}")
    parts.append("\nSettings and their defaults; those of a group are typed as group.key=value:")
    for group, choice in defaults.items():
        text = (CONF / group / f"{choice}.yaml").read_text(encoding="utf-8")
        parts.append(f"\n# {group}={choice}\n{text.strip()}")
    own = root[root.index("seed:") :].partition("server_may_set:")[0]
    parts.append(f"\n# of no group: typed as key=value\n{own.strip()}")
    return "\n".join(parts)
