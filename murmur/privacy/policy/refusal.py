"""A device's refusal to answer."""


class Refusal(Exception):  # noqa: N818 - it is an answer, not a failure
    """Why nothing is released: ``reason`` for people, ``code`` a short slug for machines."""

    def __init__(self, reason: str, code: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
