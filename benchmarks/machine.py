"""On what a figure was measured: said in every table."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path


def describe_machine(*packages: str) -> str:
    """Processor, cores, Python and the versions of ``packages``; no host name, no paths."""
    versions = [f"Python {platform.python_version()}"]
    versions += [f"{package} {version(package)}" for package in packages]
    return f"{_processor()}, {os.cpu_count()} cores; {', '.join(versions)}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
