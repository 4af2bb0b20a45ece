"""Why a run ends early."""


class RunError(Exception):
    """A run cannot go on, for a reason that whoever started it can mend: one sentence, no bug."""
