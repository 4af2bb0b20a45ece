"""Hooks of the site: README as its start, generated reference pages, links by their titles."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from docs.reference import generated

ROOT = Path(__file__).resolve().parents[1]
_PAGE = re.compile(r"\[(?:docs/)?[\w-]+\.md\]\(([\w-]+\.md)\)")  # a link named by its file
_PROJECT_FILE = re.compile(
    r"\[([^\[\]]+)\]\((\.\./[^)#]+|[A-Z]+\.md|(?:benchmarks|deploy|examples|research)/[^)#]+)(?:#[^)]*)?\)"
)


def on_files(files: Files, config: Any) -> Files:
    """Add the README as ``index.md``, and the generated pages."""
    start = (ROOT / "README.md").read_text(encoding="utf-8")
    start = start.replace("](docs/", "](").replace('="docs/', '="')
    files.append(File.generated(config, "index.md", content=start))
    for name, text in generated().items():
        files.append(File.generated(config, name, content=text))
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
