"""Make the filters of system calls that bubblewrap puts on a locked process, by libseccomp.

``python packages/murmur-guard/filters/make.py`` reads the calls in ``murmur_guard/sandbox.ini`` and
writes ``murmur_guard/x86_64.bpf`` and ``aarch64.bpf``, on either machine. It needs libseccomp alone
(Debian: libseccomp2), whose version the files have in common with ``VERSION``.
"""

import configparser
import ctypes
import ctypes.util
import os
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "murmur_guard"
VERSION = (2, 5, 4)
"""Of the libseccomp that has made the files: another may order the same checks in another way."""

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_KILL_PROCESS = 0x80000000
_ALLOW = 0x7FFF0000
_SUCCEED = 0x00050000  # an error, of number 0: nothing is done and success is told
_UNKNOWN = 0x00050000 | 38  # ENOSYS
_OTHER_ARCHITECTURE = 2  # SCMP_FLTATR_ACT_BADARCH
_EQUAL = 4
_MASKED_EQUAL = 7
_NEW_NAMESPACES = 0x7E020080  # CLONE_NEW*


class _Argument(ctypes.Structure):
    """scmp_arg_cmp: what an argument is compared with."""

    _fields_ = (
        ("number", ctypes.c_uint),
        ("comparison", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


class _Version(ctypes.Structure):
    _fields_ = (("major", ctypes.c_uint), ("minor", ctypes.c_uint), ("micro", ctypes.c_uint))


def library() -> ctypes.CDLL | None:
    """Returns libseccomp; None where it is not installed."""
    name = ctypes.util.find_library("seccomp")
    if name is None:
        return None
    found = ctypes.CDLL(name)
    found.seccomp_init.restype = ctypes.c_void_p
    found.seccomp_version.restype = ctypes.POINTER(_Version)
    return found


def version(seccomp: ctypes.CDLL) -> tuple[int, int, int]:
    """Returns the library's own."""
    found = seccomp.seccomp_version().contents
    return found.major, found.minor, found.micro


class _Filter:
    """A filter that allows nothing yet, for one architecture."""

    def __init__(self, seccomp: ctypes.CDLL, machine: str) -> None:
        self._seccomp = seccomp
        self._context = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(_UNKNOWN)))
        native = seccomp.seccomp_arch_native()
        if ARCHITECTURES[machine] != ctypes.c_uint32(native).value:
            self._do("arch_add", ctypes.c_uint32(ARCHITECTURES[machine]))
            self._do("arch_remove", ctypes.c_uint32(native))
        self._do("attr_set", _OTHER_ARCHITECTURE, ctypes.c_uint32(_KILL_PROCESS))

    def _do(self, name: str, *arguments: object) -> None:
        done = getattr(self._seccomp, f"seccomp_{name}")(self._context, *arguments)
        if done < 0:
            raise OSError(-done, f"seccomp_{name}{arguments}: {os.strerror(-done)}")

    def add(self, answer: int, name: str, *wanted: _Argument) -> None:
        """Add the ``answer`` to a call, where its arguments are as ``wanted``."""
        number = self._seccomp.seccomp_syscall_resolve_name(name.encode())
        if number == -1:
            raise ValueError(f"{name}: libseccomp knows no such call")
        compared = (_Argument * len(wanted))(*wanted)
        self._do("rule_add_array", ctypes.c_uint32(answer), number, len(wanted), compared)

    def program(self) -> bytes:
        """Returns the instructions."""
        with tempfile.TemporaryFile() as file:
            self._do("export_bpf", file.fileno())
            file.seek(0)
            return file.read()


def made(seccomp: ctypes.CDLL, machine: str) -> bytes:
    """Returns the filter of ``machine``: x86_64 or aarch64."""
    lists = configparser.ConfigParser()
    lists.read(PACKAGE / "sandbox.ini", encoding="utf-8")
    own = _Filter(seccomp, machine)
    for section, answer in (("allowed", _ALLOW), ("pretended", _SUCCEED)):
        for names in lists[section].values():
            for name in names.split():
                own.add(answer, name)
    own.add(_ALLOW, "clone", _Argument(0, _MASKED_EQUAL, _NEW_NAMESPACES, 0))
    itself = _Argument(0, _EQUAL, 0, 0)
    for name in ("ioctl", "fcntl", "prctl", "prlimit64"):
        compared = lists.getint(name, "argument")
        for value in lists[name]["values"].split():
            wanted = [_Argument(compared, _EQUAL, int(value, 0), 0)]
            if name == "prlimit64":
                wanted.append(itself)
            own.add(_ALLOW, name, *wanted)
    own.add(_ALLOW, "prlimit64", itself, _Argument(2, _EQUAL, 0, 0))  # reading any limit
    return own.program()


def main() -> None:
    """Write both files."""
    seccomp = library()
    if seccomp is None:
        raise SystemExit("libseccomp is not installed: apt install libseccomp2")
    if version(seccomp) != VERSION:
        raise SystemExit(f"libseccomp {version(seccomp)}: the files are of {VERSION}")
    for machine in ARCHITECTURES:
        (PACKAGE / f"{machine}.bpf").write_bytes(made(seccomp, machine))


if __name__ == "__main__":
    main()
