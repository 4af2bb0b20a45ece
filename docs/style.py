"""How the pages read: ``python -m docs.style`` prints words, words a sentence and long sentences.

Tables, code and headings count as words of a page, and have no sentences.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_WORDS = 30_000
MAX_PAGES = 32
MAX_MEAN_SENTENCE_WORDS = 20.0
MAX_SENTENCE_WORDS = 40
KINDS = ("Start", "How to", "Explanation", "Reference")
_FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_ITEM = re.compile(r"^ *(?:[*-]|\d+\.) ", re.MULTILINE)
_END = re.compile(r"(?<=[.?!])[*)\"]*\s+(?=[*(\"`]*[A-ZΑ-Ωε\d`*])|:\s*$")


@dataclass(frozen=True)
class Page:
    """One page as it is read.

    Attributes:
        name: its path in the project.
        kind: what it is for, one of ``KINDS``; None where it does not say so.
        words: its words, tables and code included.
        sentences: the sentences of its paragraphs.
    """

    name: str
    kind: str | None
    words: int
    sentences: tuple[str, ...]

    @property
    def mean(self) -> float:
        """Mean number of words a sentence."""
        lengths = [len(sentence.split()) for sentence in self.sentences]
        return sum(lengths) / max(len(lengths), 1)

    @property
    def long(self) -> list[str]:
        """Sentences of more than ``MAX_SENTENCE_WORDS`` words."""
        return [text for text in self.sentences if len(text.split()) > MAX_SENTENCE_WORDS]


def names() -> list[Path]:
    """README and the pages of docs/ and deploy/."""
    found = [ROOT / "README.md"]
    for folder in ("docs", "deploy"):
        found += sorted((ROOT / folder).glob("**/*.md"))
    return found


def sentences(text: str) -> list[str]:
    """Sentences of a page's paragraphs and lists, without code and tables."""
    text = _LINK.sub(r"\1", _FENCED.sub("", text))
    found = []
    for block in re.split(r"\n\s*\n", _ITEM.sub("\n\n", text)):
        is_prose = not re.match(r" {4}|\||#|<|\[<", block)
        if is_prose:
            found += _END.split(" ".join(block.split()))
    return [sentence for sentence in found if len(sentence.split()) > 1]


def read(path: Path) -> Page:
    """One page."""
    text = path.read_text(encoding="utf-8")
    kind = re.search(rf"^\*({'|'.join(KINDS)})\. ", text, re.MULTILINE)
    return Page(
        path.relative_to(ROOT).as_posix(),
        kind[1] if kind else None,
        len(text.split()),
        tuple(sentences(text)),
    )


def pages() -> list[Page]:
    """All pages."""
    return [read(path) for path in names()]


def main() -> None:
    """Print a line for each page, the sums, and every long sentence."""
    found = pages()
    print(f"{'page':34}{'kind':13}{'words':>7}{'a sentence':>12}{'long':>6}")
    for page in found:
        kind = page.kind or "-"
        print(f"{page.name:34}{kind:13}{page.words:7,}{page.mean:12.1f}{len(page.long):6}")
    every = [sentence for page in found for sentence in page.sentences]
    mean = sum(len(sentence.split()) for sentence in every) / len(every)
    long = sum(len(page.long) for page in found)
    total = sum(page.words for page in found)
    print(f"{f'{len(found)} pages':47}{total:7,}{mean:12.1f}{long:6}")
    for page in found:
        for sentence in page.long:
            print(f"\n{page.name}: {sentence}")


if __name__ == "__main__":
    main()
