"""Errors for files that cannot be read, are damaged, or hold a wrong row."""

from pathlib import Path

from murmur.learning.data.examples import DataError


def damaged(path: Path | str, problem: object) -> DataError:
    """The error for a file whose content is not what it should be.

    Args:
        path: the file.
        problem: an exception or words, which are put on one line.
    """
    detail = " ".join(str(problem).split()) or type(problem).__name__
    return DataError(f"{path} is damaged or of another kind ({detail}); replace it by a good copy")


def unreadable(path: Path, error: OSError) -> DataError:
    """The error for a file that the operating system refuses to give."""
    return DataError(f"{path} cannot be read ({error.strerror or error}); restore it")


def wrong_row(path: Path, line: int, what: str) -> DataError:
    """The error for one line of a CSV file.

    Args:
        path: the file.
        line: its number, from 1.
        what: is wrong with it.
    """
    return DataError(f"{path}, line {line}: it has {what}; correct the file")


def read_bytes(path: Path) -> bytes:
    """All of a file; DataError where the operating system does not give it."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
