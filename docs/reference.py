"""Pages of the site that are made from the project: settings, commands, policy keys and formats."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from pathlib import Path

import yaml

from fl_app.cli import TOOLS
from fl_app.config.groups import CONF
from fl_app.run import model_folder, results
from fl_app.tools import options
from murmur.privacy.ledger import chain
from murmur.privacy.policy_terms import MECHANISMS

ROOT = CONF.parent


def generated() -> dict[str, str]:
    """The name of each generated page, and its text."""
    return {
        "settings.md": settings(),
        "commands.md": commands(),
        "policy-keys.md": policy_keys(),
        "formats.md": formats(),
    }


def settings() -> str:
    """Every file of conf/, by group: each line says what its setting means."""
    parts = ["# Settings\n\n*Reference.* Every choice of every group, as it stands in `conf/`.\n"]
    for folder in sorted(path for path in CONF.iterdir() if path.is_dir()):
        parts.append(f"\n## {folder.name}\n")
        for path in sorted(folder.rglob("*.yaml")):
            parts.append(f"\n### {folder.name}={path.stem}\n\n{_block(path, 'yaml')}")
    return "".join(parts)


def commands() -> str:
    """Every tool of ``murmur``, with what its ``--help`` prints."""
    helps: dict[str, str] = {}
    for page in (options.PAGE, *sorted(ROOT.glob("packages/*/*/options.yaml"))):
        for name in yaml.safe_load(page.read_text(encoding="utf-8")):
            tool = name.split()[0]
            for parser in _parsers(options.parser_of(name, page)):
                helps[tool] = helps.get(tool, "") + _help(parser)
    parts = ["# Commands\n\n*Reference.* `murmur key=value ...` is a run, `murmur -m` a sweep.\n"]
    for tool, line in sorted(TOOLS.items()):
        parts.append(f"\n## murmur {tool}\n\n{line[0].upper()}{line[1:]}.\n")
        parts.append(helps.get(tool, ""))  # those of `supernode` are Flower's
    return "".join(parts)


def policy_keys() -> str:
    """The keys of an owner's policy: the example, what a mechanism limits, and the Guard's."""
    guarded = (ROOT / "docs" / "any-flower-app.md").read_text(encoding="utf-8")
    [guard] = re.findall(r"```yaml\nguard:\n.*?```", guarded, re.DOTALL)
    rows = "".join(f"| `{name}` | `{kind.limit}` |\n" for name, kind in MECHANISMS.items())
    example = _block(ROOT / "deploy" / "policy.example.yaml", "yaml")
    return (
        f"# Policy keys\n\n*Reference.* The example explains each key.\n\n{example}\n"
        f"## Limits of a mechanism\n\n| mechanism | limit |\n|---|---|\n{rows}\n"
        f"## The Guard\n\n{guard}\n"
    )


def formats() -> str:
    """Files that outlive a run, with the number of their format."""
    start = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    table = start[start.index("| file | holds |") :].partition("\n\n")[0]
    return (
        "# Formats\n\n*Reference.* Files that outlive a run.\n\n| file | format |\n|---|---|\n"
        f"| ledger | {chain.FORMAT} |\n| checkpoint | {results.FORMAT} |\n"
        f"| model folder | {model_folder.FORMAT} |\n\n"
        f"## A run's folder\n\n{table}\n"
    )


def _parsers(parser: ArgumentParser) -> list[ArgumentParser]:
    """A parser, and those of its kinds (``murmur doctor device``)."""
    found = [parser]
    for action in parser._actions:
        if isinstance(action.choices, dict):
            found += action.choices.values()
    return found


def _help(parser: ArgumentParser) -> str:
    """What ``--help`` prints, as a block."""
    return f"\n```text\n{parser.format_help().strip()}\n```\n"


def _block(path: Path, language: str) -> str:
    """A file as a block of code."""
    return f"```{language}\n{path.read_text(encoding='utf-8').strip()}\n```\n"
