"""What an app was asked last, once more: nobody hears of it, and it costs nothing."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fl_app.device.api import FAIL, OK, Check
from murmur.privacy.policy_terms import GuardRules
from murmur_guard.guard import LAST, READ_ONLY, AppError, answered, require_few
from murmur_guard.guarded import unpack_frame

_TRIES = 20  # an app that fails tells of one folder at a time
_ABSOLUTE = re.compile(r"""['"](/[^'"]+)['"]""")


def try_app(folder: Path, rules: GuardRules) -> Check:
    """Checks that the app that a device was asked for last answers, on the device's own data.

    It runs as for a message, again for each folder in which it would write beside the data; these
    it may write in for the try. Nothing is charged, sent or kept, its state neither.

    Args:
        folder: the device's.
        rules: the owner's.

    Raises:
        DeviceError: a folder in which it writes holds too much for this bubblewrap.
        OSError: nothing can be started.
    """
    asked = folder / "apps" / LAST
    if not asked.exists():
        return Check("app", FAIL, "no app was asked here yet", "start a run, then try again")
    writes = list(rules.writes)
    for _ in range(_TRIES):
        allowed = replace(rules, writes=tuple(writes))
        require_few(allowed)
        began = time.monotonic()
        try:
            unpack_frame(answered(allowed, asked, rules.memory), rules.memory)
        except AppError as error:
            more = [path for path in _beside(str(error), rules) if path not in writes]
            if not more:
                return Check("app", FAIL, str(error), "the app's author has to correct it")
            writes += dict.fromkeys(more)
            continue
        break
    else:
        return Check(
            "app", FAIL, f"writes in more than {_TRIES} folders", "install bubblewrap 0.11"
        )
    found = f"answers in {time.monotonic() - began:.1f} s of {rules.app_seconds:g}"
    if len(writes) == len(rules.writes):
        return Check("app", OK, found)
    needed = ", ".join(map(str, writes))
    found += ", where it may write beside its data; as it is, it answers nothing"
    return Check("app", FAIL, found, f"in the policy's guard: writes: [{needed}]")


def _beside(printed: str, rules: GuardRules) -> Iterator[Path]:
    """Yields folders of the owner's data in which an app could not write, by what it printed."""
    for line in printed.splitlines():
        if READ_ONLY in line:
            for name in _ABSOLUTE.findall(line):
                place = Path(name).parent
                if any(place.is_relative_to(path) for path in rules.data):
                    yield place
