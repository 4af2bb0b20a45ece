"""Size and opening time of a report: python -m benchmarks.report RUN_OR_SWEEP [--plotly].

Opening: from the start of navigation to the frame after the load event in headless Chromium, page
read from the disk, a fresh browser context for each of five openings. Processor time is that of all
of Chromium's processes meanwhile: on a busy machine it says more than the clock. ``--plotly`` opens
for comparison a page with plotly.js inlined (Python package plotly) that draws the same charts.
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
from fl_app.report import page as report
from fl_app.report.privacy_figures import epsilon_figure, spend_figure
from fl_app.report.reading import Source, read
from fl_app.report.scales import byte_count
from fl_app.report.score_figures import bytes_figure, rounds_figure
from fl_app.report.settings import group

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession

FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
FLAGS += "--disable-component-update --disable-sync"
OPENED = """() => new Promise(done => requestAnimationFrame(() => setTimeout(() => done(
    performance.now()), 0)))"""


def main() -> int:
    """Print one line for each page; 2 without a browser."""
    options = _options()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("no Chromium here: install Debian's package chromium", file=sys.stderr)
        return 2
    source = read(Path(options.folder))
    pages = {"murmur report": report.page(source, datetime.now())}
    if options.plotly:
        pages["the same charts by plotly.js"] = plotly_page(source)
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
            clock = tab.evaluate(OPENED)
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


def plotly_page(source: Source) -> str:
    """The report's charts, nothing else, as plotly.js would draw them."""
    import plotly.graph_objects as go
    from plotly.offline import get_plotlyjs

    grouping = group(source.runs)
    figures = [
        rounds_figure(grouping, "accuracy"),
        epsilon_figure(grouping, "accuracy"),
        bytes_figure(grouping, "accuracy"),
        spend_figure(grouping),
    ]
    parts = []
    for panel in (panel for figure in figures if figure for panel in figure.panels):
        drawn = go.Figure()
        for line in panel.chart.lines:
            mode = "lines" if line.joined else "markers"
            xs, ys = [p.x for p in line.points], [p.y for p in line.points]
            drawn.add_scatter(x=xs, y=ys, mode=mode, name=line.name)
        parts.append(drawn.to_html(full_html=False, include_plotlyjs=False))
    return f"<!DOCTYPE html><script>{get_plotlyjs()}</script>{''.join(parts)}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", metavar="RUN_OR_SWEEP")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--plotly", action="store_true", help="needs `pip install plotly`")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
