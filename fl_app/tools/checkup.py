"""What `murmur doctor` finds out about a machine; each check says what to do where it fails."""

from __future__ import annotations

import os
import shutil
import ssl
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPSConnection
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)

OK, WARN, FAIL = "ok", "warn", "fail"
SOON = 30  # days before an expiry at which one is told
LEAST_DISK, SMALL_DISK = 200 * 2**20, 2**30  # bytes: too little, little
LEAST_SECRET = 16  # bytes
CLOCK_SECONDS = 60.0  # how far two clocks may be apart


@dataclass(frozen=True)
class Check:
    """``status``: ok, warn or fail; ``found``: what is so; ``advice``: what to do."""

    name: str
    status: str
    found: str
    advice: str = ""


def attempt(name: str, check: Callable[[], Check], advice: str) -> Check:
    """``check``, or the failure that it ran into."""
    try:
        return check()
    except Exception as error:  # a doctor reports whatever is wrong, and goes on
        return Check(name, FAIL, " ".join(str(error).split()) or type(error).__name__, advice)


def python_version(running: tuple[int, ...] = sys.version_info[:2]) -> Check:
    """3.11 to 3.13."""
    found = ".".join(map(str, running))
    if (3, 11) <= running < (3, 14):
        return Check("Python", OK, found)
    return Check("Python", FAIL, found, "install Python 3.11, 3.12 or 3.13")


def package(name: str, wanted: str = "") -> Check:
    """Whether ``name`` is installed in a version that begins with ``wanted``."""
    try:
        found = version(name)
    except PackageNotFoundError:
        return Check(name, FAIL, "not installed", f"pip install {name}")
    if found.startswith(wanted):
        return Check(name, OK, found)
    return Check(name, FAIL, found, f"pip install '{name}=={wanted}*'")


def disk(folder: Path) -> Check:
    """Room for ledger, state and results."""
    place = folder.expanduser().absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    found = f"{free / 2**30:.1f} GiB free at {place}"
    if free < LEAST_DISK:
        return Check("disk", FAIL, found, "make room: a ledger that cannot be written stops all")
    return Check("disk", WARN if free < SMALL_DISK else OK, found)


def writable(name: str, folder: Path) -> Check:
    """Whether this user can write into ``folder``, which is made where it is missing."""
    folder.expanduser().mkdir(parents=True, exist_ok=True)
    if os.access(folder.expanduser(), os.W_OK):
        return Check(name, OK, str(folder))
    return Check(name, FAIL, f"{folder} cannot be written", "chown it to this user")


def not_writable_by_others(name: str, file: Path) -> Check:
    """A file that decides what leaves must not be anybody's to change."""
    mode = file.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        found = f"{file} may be written by others ({stat.filemode(mode)})"
        return Check(name, FAIL, found, f"chmod go-w {file}")
    return Check(name, OK, stat.filemode(mode))


def private_key(file: Path, certificate: Path | None = None) -> Check:
    """A key that only its owner can read, and that fits ``certificate`` or its ``.pub``."""
    name, mode = f"key {file.name}", file.stat().st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return Check(name, FAIL, f"others may read it ({stat.filemode(mode)})", f"chmod 600 {file}")
    content = file.read_bytes()
    ssh = b"OPENSSH PRIVATE KEY" in content
    key = (load_ssh_private_key if ssh else load_pem_private_key)(content, password=None)
    if certificate is not None:
        owner = x509.load_pem_x509_certificate(certificate.read_bytes())
        if key.public_key() != owner.public_key():
            return Check(name, FAIL, f"is not the key of {certificate}", "use the pair's own key")
    elif not isinstance(key, EllipticCurvePrivateKey):
        return Check(name, FAIL, "is no elliptic-curve key", "make one with deploy/node-key.sh")
    elif (public := file.with_name(file.name + ".pub")).exists():
        mine = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        if mine.split()[:2] != public.read_bytes().split()[:2]:
            return Check(name, FAIL, f"does not fit {public.name}", "enrol the key's own .pub")
    return Check(name, OK, "readable by its owner only")


def secret(file: Path) -> Check:
    """A secret that only its owner can read, and nobody can guess."""
    mode = file.stat().st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        found = f"others may read it ({stat.filemode(mode)})"
        return Check("secret", FAIL, found, f"chmod 600 {file}")
    if (size := file.stat().st_size) < LEAST_SECRET:
        advice = f"head -c 32 /dev/urandom > {file}"
        return Check("secret", FAIL, f"{size} bytes: can be guessed", advice)
    return Check("secret", OK, "readable by its owner only")


def certificate(file: Path, authority: Path | None = None, now: datetime | None = None) -> Check:
    """A certificate that is valid now, and signed by ``authority``."""
    name, now = f"certificate {file.name}", now or datetime.now(UTC)
    loaded = x509.load_pem_x509_certificate(file.read_bytes())
    left = (loaded.not_valid_after_utc - now).days
    again = "make a new one with deploy/certificates.sh"
    if loaded.not_valid_before_utc > now:
        return Check(name, FAIL, f"valid from {loaded.not_valid_before_utc:%F} on", "set the clock")
    if loaded.not_valid_after_utc <= now:
        return Check(name, FAIL, f"expired on {loaded.not_valid_after_utc:%F}", again)
    if authority is not None:
        try:
            loaded.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.read_bytes()))
        except (InvalidSignature, ValueError):
            return Check(name, FAIL, f"was not signed by {authority}", again)
    if left < SOON:
        return Check(name, WARN, f"{left} days left", again)
    return Check(name, OK, f"{left} days left")


def superlink(address: str, authority: Path | None, timeout: float = 5.0) -> list[Check]:
    """Whether a SuperLink answers over TLS, and how far its clock is from this machine's."""
    name = f"SuperLink {address}"
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        return [Check(name, FAIL, "is no address", "give it as HOST:PORT")]
    try:
        context = ssl.create_default_context(cafile=None if authority is None else str(authority))
    except OSError as error:
        found = f"{authority} holds no certificate ({error.strerror or error})"
        return [Check(name, FAIL, found, "give the ca.pem of the SuperLink's authority")]
    connection = HTTPSConnection(host, int(port), timeout=timeout, context=context)
    try:
        connection.request("GET", "/health")
        date = connection.getresponse().getheader("Date")
    except ssl.SSLCertVerificationError as error:
        advice = "use the ca.pem of this SuperLink, and a host name that its certificate has"
        return [Check(name, FAIL, f"its certificate: {error.verify_message}", advice)]
    except (OSError, HTTPException) as error:
        return [Check(name, FAIL, f"no answer: {error}", "is it running, and the port open?")]
    finally:
        connection.close()
    checks = [Check(name, OK, "answers over TLS")]
    if date is not None:
        checks.append(_clock((datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds()))
    return checks


def _clock(apart: float) -> Check:
    found = f"{abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} the SuperLink"
    if abs(apart) > CLOCK_SECONDS:
        advice = "set the clock (NTP): policies and certificates expire by it"
        return Check("clock", FAIL, found, advice)
    return Check("clock", OK, found)
