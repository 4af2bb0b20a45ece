"""Checks of `murmur doctor` that packages share: one line each, and a device's policy."""

import stat
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from murmur.privacy.policy import Policy

if TYPE_CHECKING:
    from fl_app.run.data_card import DataCard

OK = "ok"
WARN = "warn"
FAIL = "fail"
EXPIRY_WARNING_DAYS = 30


@dataclass(frozen=True)
class Check:
    """One line of the doctor's table.

    Attributes:
        name: what was looked at.
        status: ``OK``, ``WARN`` or ``FAIL``.
        found: what is so.
        advice: what to do about it, unless all is well.
        card: of the data that were looked at, for their owner.
    """

    name: str
    status: str
    found: str
    advice: str = ""
    card: "DataCard | None" = None


def attempt(name: str, advice: str, check: Callable[..., Check], *about: Any) -> Check:
    """Returns ``check(*about)``, or the failure that it ran into.

    Args:
        name: of the failure's line.
        advice: what to do where ``check`` raises, which may be anything.
        check: looks at ``about``.
        about: its arguments.
    """
    try:
        return check(*about)
    except Exception as error:  # a doctor reports whatever is wrong, and goes on
        return Check(name, FAIL, " ".join(str(error).split()) or type(error).__name__, advice)


def policy_file(path: Path) -> Check:
    """Checks that the policy in ``path`` holds, and is nobody else's to change.

    Raises:
        LedgerError, OSError: it cannot be read, or does not hold now.
    """
    rules = Policy.load(path)
    now = datetime.now(UTC)
    rules.require_valid(now)
    left = (rules.expires - now).days
    mode = path.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        found = f"{path} may be written by others ({stat.filemode(mode)})"
        return Check("policy", FAIL, found, f"chmod go-w {path}")
    if left < EXPIRY_WARNING_DAYS:
        return Check("policy", WARN, f"expires in {left} days", f"renew `expires` in {path}")
    return Check("policy", OK, f"valid for {left} days")
