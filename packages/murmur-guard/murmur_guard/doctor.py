"""`murmur doctor guard`: what holds a foreign app on this machine, and what its owner has said."""

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from fl_app.device.api import FAIL, OK, WARN, Check, attempt, policy_file
from murmur.privacy.policy import Policy
from murmur.privacy.policy_terms import GuardRules
from murmur_guard.guard import LOOK_SECONDS, require_apart
from murmur_guard.sandbox import MIN_LANDLOCK_ABI, PARTS, landlock_version, missing

_TO_GET = {
    "landlock": "Linux 6.2 or later, with landlock among the kernel's lsm=",
    "seccomp": "x86-64 or arm64, and a kernel with CONFIG_SECCOMP_FILTER",
    "namespaces": "let this account make user namespaces, which containers' profiles often forbid "
    "(sysctl kernel.apparmor_restrict_unprivileged_userns=0)",
}


def guard_checks(folder: Path) -> Iterator[Check]:
    """Yields checks of a foreign app's isolation and of its owner's rules.

    One line for each part of the isolation (``murmur_guard.sandbox``), one for what the kernel
    counts. A part that is lacking fails, unless the policy does without it.

    Args:
        folder: the device's, as given to ``murmur guard``.
    """
    path = folder / "policy.yaml"
    yield attempt("policy", "see docs/any-flower-app.md", policy_file, path)
    rules = Policy.load(path).guard
    without: tuple[str, ...] = ()
    if rules is None:
        yield Check("guard", FAIL, f"{path} has no `guard`", "see docs/any-flower-app.md")
    else:
        without = rules.without
    lacking = missing()
    for part in PARTS:
        yield isolation(part, part in lacking, part in without)
    yield limits(os.geteuid())
    if rules is not None:
        yield attempt("apps' data", "correct guard.data", _apps_data, folder, rules)


def isolation(part: str, lacking: bool, without: bool) -> Check:
    """Checks that this machine gives a part of the isolation.

    Args:
        part: of ``PARTS``.
        lacking: whether it does not.
        without: whether the policy does without it.
    """
    found = {
        "landlock": f"ABI {landlock_version()}, at least {MIN_LANDLOCK_ABI} is needed",
        "seccomp": platform.machine(),
        "namespaces": "user, mount, network, IPC and process",
    }[part]
    if not lacking:
        if without:
            advice = f"take {part} out of guard.without"
            return Check(part, WARN, f"{found}; not used", advice)
        return Check(part, OK, found)
    advice = f"{_TO_GET[part]}; or guard.without: [{part}]"
    if without:
        return Check(part, WARN, f"not here ({found}); the policy does without", advice)
    return Check(part, FAIL, f"not here ({found})", advice)


def limits(user: int) -> Check:
    """Checks who counts an app's processes: the kernel at once, or the Guard from time to time.

    ``user``: the effective id of the account that runs the Guard.
    """
    if user == 0:
        found = f"root: the Guard counts processes every {LOOK_SECONDS:g} s, the kernel does not"
        return Check("limits", WARN, found, "run it under an account of its own")
    return Check("limits", OK, "of the kernel, for each process and for all of this account")


def _apps_data(folder: Path, rules: GuardRules) -> Check:
    """Checks that what an app may read is there, and the device's own folder is no part of it.

    Raises:
        DeviceError: it is not so.
    """
    require_apart(folder, rules)
    return Check("apps' data", OK, ", ".join(map(str, rules.data)) or "none")
