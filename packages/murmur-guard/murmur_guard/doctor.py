"""`murmur doctor guard`: what holds a foreign app on this machine, and what its owner has said."""

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from fl_app.device.api import FAIL, OK, WARN, Check, attempt, policy_file
from murmur.privacy.policy import Policy
from murmur.privacy.policy_terms import GuardRules
from murmur_guard.guard import LOOK_SECONDS, require_apart, require_few
from murmur_guard.sandbox import bubblewrap_version, cgroup, missing
from murmur_guard.trial import try_app


def guard_checks(folder: Path, run: bool = False) -> Iterator[Check]:
    """Yields checks of a foreign app's isolation and of its owner's rules.

    Args:
        folder: the device's, as given to ``murmur guard``.
        run: whether the app that was asked last is run again.
    """
    path = folder / "policy.yaml"
    yield attempt("policy", "see docs/any-flower-app.md", policy_file, path)
    rules = Policy.load(path).guard
    if rules is None:
        yield Check("guard", FAIL, f"{path} has no `guard`", "see docs/any-flower-app.md")
    yield isolation()
    yield limits(os.geteuid(), cgroup())
    if rules is not None:
        yield attempt("apps' data", "correct guard.data", _apps_data, folder, rules)
    if rules is not None and run:
        yield attempt("app", "see what it printed", try_app, folder, rules)


def isolation() -> Check:
    """Checks that this machine locks a process in, by starting one."""
    lacking = missing()
    if lacking:
        return Check("isolation", FAIL, lacking, "see packages/murmur-guard/README.md")
    version = ".".join(map(str, bubblewrap_version()))
    return Check("isolation", OK, f"bubblewrap {version}, filter for {platform.machine()}")


def limits(user: int, delegated: Path | None) -> Check:
    """Checks who counts an app's processes: the kernel at once, or the Guard from time to time.

    Args:
        user: the effective id of the account that runs the Guard.
        delegated: the cgroup that was delegated to it; None where there is none.
    """
    if delegated is not None:
        return Check("limits", OK, f"of the kernel, for all of an app together, in {delegated}")
    if user == 0:
        found = f"root: the Guard counts processes every {LOOK_SECONDS:g} s, the kernel does not"
        return Check(
            "limits", WARN, found, "run it under an account of its own, or in a cgroup of its own"
        )
    return Check("limits", OK, "of the kernel, for each process and for all of this account")


def _apps_data(folder: Path, rules: GuardRules) -> Check:
    """Checks that what an app may read is there, and the device's own folder is no part of it.

    Raises:
        DeviceError: it is not so.
    """
    require_apart(folder, rules)
    require_few(rules)
    return Check("apps' data", OK, ", ".join(map(str, rules.data)) or "none")
