"""Pages of the site that are made of the project: its start of README.md, its settings of conf/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
_PAGE = re.compile(r"\[(?:docs/)?[\w-]+\.md\]\(([\w-]+\.md)\)")  # a link named by its file
_PROJECT_FILE = re.compile(
    r"\[([^\[\]]+)\]\((\.\./[^)#]+|[A-Z]+\.md|(?:deploy|examples)/[^)#]+)(?:#[^)]*)?\)"
)


def on_files(files: Files, config: Any) -> Files:
    """Add ``index.md`` and ``settings.md``, which are nowhere on disk."""
    start = (ROOT / "README.md").read_text(encoding="utf-8")
    start = start.replace("](docs/", "](").replace('="docs/', '="')
    files.append(File.generated(config, "index.md", content=start))
    files.append(File.generated(config, "settings.md", content=settings()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links are named by the pages' titles; those to files that are no pages become names."""

    def named(link: re.Match[str]) -> str:
        text, name = link[1], link[2].removeprefix("../")
        return f"`{name}`" if text in (name, Path(name).name) else f"{text} (`{name}`)"

    def titled(link: re.Match[str]) -> str:
        text = (ROOT / "docs" / link[1]).read_text(encoding="utf-8")
        return f"[{text.partition(chr(10))[0].removeprefix('# ')}]({link[1]})"

    return _PAGE.sub(titled, _PROJECT_FILE.sub(named, markdown))


def settings() -> str:
    """Every file of conf/, by group, as it stands: each line says what its setting means."""
    conf = ROOT / "conf"
    parts = ["# Settings\n\nEvery choice of every group, as it stands in `conf/`.\n"]
    for folder in sorted(path for path in conf.iterdir() if path.is_dir()):
        parts.append(f"\n## {folder.name}\n")
        for path in sorted(folder.rglob("*.yaml")):
            text = path.read_text(encoding="utf-8").strip()
            parts.append(f"\n### {folder.name}={path.stem}\n\n```yaml\n{text}\n```\n")
    return "".join(parts)
