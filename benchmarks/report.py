"""Size and opening time of a report: python -m benchmarks.report RUN_OR_SWEEP.

Opening: from the start of navigation until every chart is drawn in headless Chromium, page
read from the disk, a fresh browser context for each of five openings. Processor time is that of all
of Chromium's processes meanwhile: on a busy machine it says more than the clock.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import describe_machine
from fl_app.run.load import load_runs
from murmur_report import page as report
from murmur_report.figures import byte_count

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession

FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
FLAGS += "--disable-component-update --disable-sync"


def main() -> int:
    """Print one line for each page; 2 without a browser."""
    options = _options()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("no Chromium here: install Debian's package chromium", file=sys.stderr)
        return 2
    source = load_runs(Path(options.folder))
    pages = {"murmur report": report.page(source, datetime.now())}
    print(describe_machine("playwright"))
    for name, html in pages.items():
        times, work = zip(*opening_times(chromium, html, options.times), strict=True)
        print(
            f"{name}: {byte_count(len(html.encode()))}, {len(source.runs)} runs; opens in "
            f"{statistics.median(times):.0f} ms ({min(times):.0f} to {max(times):.0f}), processor "
            f"time {statistics.median(work):.0f} ms; median of {len(times)}"
        )
    return 0


def opening_times(chromium: str, html: str, times: int) -> list[tuple[float, float]]:
    """(from navigation to the first frame after loading, Chromium's processor time), in ms."""
    from playwright.sync_api import sync_playwright

    found = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "report.html"
        path.write_text(html, encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS.split())
        session = browser.new_browser_cdp_session()
        for _ in range(times + 1):
            context = browser.new_context(viewport={"width": 1280, "height": 800})
            tab = context.new_page()
            before = processor_times(session)
            tab.goto(path.as_uri(), timeout=300_000)
            tab.wait_for_selector("html[data-drawn]", timeout=300_000)
            clock = tab.evaluate("() => performance.now()")
            after = processor_times(session)
            work = sum(spent - before.get(process, 0) for process, spent in after.items())
            found.append((clock, 1000 * work))
            context.close()
        browser.close()
    return found[1:]  # the first opening warms the browser itself


def processor_times(session: CDPSession) -> dict[int, float]:
    """Seconds of processor time of each of Chromium's processes."""
    listed = session.send("SystemInfo.getProcessInfo")["processInfo"]
    return {process["id"]: process["cpuTime"] for process in listed}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", metavar="RUN_OR_SWEEP")
    parser.add_argument("--times", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
