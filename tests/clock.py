"""A clock for tests of what waits."""


class Clock:
    """Stands for the module ``time``: time passes by sleeping only."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
