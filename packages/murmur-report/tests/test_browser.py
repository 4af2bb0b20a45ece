"""The page in a real browser: it works for everybody, without a network, on screen and paper."""

import csv
import re
import shutil
from datetime import datetime

import pytest

from fl_app.run.load import load_runs
from murmur_report.page import page as render
from tests.run_folders import write_run

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium here: install Debian's package chromium"
    ),
]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Texts of one chart that lie on each other by more than a pixel.
OVERPRINTED = """charts => charts.flatMap(chart => {
    const every = [...chart.querySelectorAll("text")];
    const texts = every.filter(text => text.textContent && text.checkVisibility());
    const boxes = texts.map(t => [t.textContent, t.getBoundingClientRect()]);
    return boxes.flatMap(([one, a], i) => boxes.slice(i + 1).filter(([_, b]) =>
        Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
        Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3).map(([two]) => [one, two]));
})"""
EVIL = "</script><script>window.hacked = true</script><img src=x onerror='hacked = true'>"


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def report(sweep_folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(load_runs(sweep_folder), datetime(2026, 1, 2, 3, 4)), encoding="utf-8")
    return path


@pytest.fixture
def view(browser, report):
    """Opens a page; what goes wrong or out is in its ``trouble``."""
    opened = []

    def open_page(path=report, width=1200, **context):
        tab = browser.new_context(
            viewport={"width": width, "height": 800}, offline=True, **context
        ).new_page()
        tab.set_default_timeout(60_000)  # a busy machine is slow, not wrong
        tab.trouble = []
        tab.on("console", lambda message: tab.trouble.append(message.text))
        tab.on("pageerror", lambda error: tab.trouble.append(str(error)))
        tab.on("request", lambda request: tab.trouble.append(request.url))
        tab.goto(path.as_uri())
        tab.wait_for_selector("html[data-drawn]")
        opened.append(tab)
        return tab

    yield open_page
    for tab in opened:
        tab.context.close()


def outside(tab):
    return [what for what in tab.trouble if not what.startswith(("file:", "data:"))]


def test_opens_without_errors_or_network(view, report):
    tab = view()
    assert tab.locator("h1").inner_text().startswith("Sweep")
    assert tab.locator(".chart svg .mark-line path").count() > 5
    assert outside(tab) == []
    assert [t for t in tab.trouble if t.startswith("file:")] == [report.as_uri()]


@pytest.mark.parametrize("width", [360, 390, 800, 1300])
def test_nothing_sticks_out_of_a_phone(view, width):
    tab = view(width=width)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    for details in tab.locator("details").all():
        details.evaluate("part => part.open = true")
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert tab.locator(".chart svg").evaluate_all(OVERPRINTED) == []


def test_one_box_shows_and_hides_a_setting_in_every_chart_by_keyboard(view):
    tab = view()
    box = tab.locator('#glance tr[data-s="s0"] input')
    marks = tab.locator(".chart .mark-symbol.role-mark path")
    count = "document.querySelectorAll('.chart .mark-symbol.role-mark path').length"
    before = marks.count()
    box.focus()
    tab.keyboard.press("Space")
    tab.wait_for_function(f"() => {count} < {before}")
    tab.wait_for_timeout(300)
    assert before - marks.count() >= 5 * 2
    tab.keyboard.press("Space")
    tab.wait_for_function(f"() => {count} == {before}")


def test_a_mark_says_whose_it_is_and_its_figures(view):
    tab = view()
    mark = tab.locator("#epsilon .mark-symbol.role-mark path").first
    mark.scroll_into_view_if_needed()
    mark.hover(force=True)
    told = tab.locator("#vg-tooltip-element.visible").inner_text()
    assert re.search(r"setting:?\s+(PrivateKT|NbAFL), ε = ", told.replace("\u00a0", " "))
    assert re.search(r"epsilon:?\s+[\d.∞]+", told) and re.search(r"accuracy:?\s+0\.\d+", told)


def test_a_figure_saves_as_svg_in_colours_of_its_own_and_its_numbers_as_csv(view):
    tab = view(color_scheme="dark")
    with tab.expect_download() as saved:
        tab.get_by_label("Save").select_option("swept")
        tab.get_by_role("button", name="as SVG").click()
    drawn = saved.value.path().read_text(encoding="utf-8")
    assert drawn.startswith("<svg") and "var(" not in drawn and "#0a63ad" in drawn
    with tab.expect_download() as saved:
        tab.get_by_label("Save").select_option("epsilon")
        tab.get_by_role("button", name="as CSV").click()
    assert saved.value.suggested_filename == "epsilon.csv"
    rows = list(csv.DictReader(saved.value.path().read_text(encoding="utf-8").splitlines()))
    kinds = {"claimed", "proven", "without noise", ""}  # chance has none
    assert {row["which ε"] for row in rows} == kinds
    assert {row["ε"] for row in rows} >= {"5", "30", "∞"}
    promise = "Everything that one client holds, exchanged for anything else, against"
    assert promise in saved.value.path().read_text(encoding="utf-8")


def test_the_theme_follows_the_system_until_the_button_is_pressed(view):
    tab = view(color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = tab.evaluate(paper)
    assert luminance(dark) < 0.05
    tab.get_by_role("button", name="Light colours").click()
    assert luminance(tab.evaluate(paper)) > 0.9
    tab.get_by_role("button", name="Dark colours").click()
    assert tab.evaluate(paper) == dark


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessible_by_axe_in_both_themes(view, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    tab = view(color_scheme=scheme)
    for details in tab.locator("details").all():
        details.evaluate("part => part.open = true")
    found = axe.Axe().run(tab).response["violations"]
    assert [(v["id"], v["nodes"][0]["html"][:200]) for v in found] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_in_charts_have_contrast(view, scheme):
    """Axe does not look into SVG."""
    tab = view(color_scheme=scheme)
    paper = luminance(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
    every = "(parts, name) => [...new Set(parts.map(part => getComputedStyle(part)[name]))]"
    texts = tab.locator(".chart text").evaluate_all(every, "fill")
    lines = tab.locator(".chart .mark-line path").evaluate_all(every, "stroke")
    assert texts and lines
    assert min(contrast(luminance(colour), paper) for colour in texts) >= 4.5
    assert min(contrast(luminance(colour), paper) for colour in lines) >= 3


def test_a_printed_sweep_is_light_as_wide_as_the_paper_and_at_most_four_pages(view):
    tab = view(width=700, color_scheme="dark")  # A4 within its margins
    tab.emulate_media(media="print")
    assert luminance(tab.evaluate("getComputedStyle(document.body).backgroundColor")) > 0.9
    assert tab.evaluate("document.documentElement.scrollWidth") == 700
    assert not any(
        button.is_visible() for button in tab.locator("#theme, .save, #glance input").all()
    )
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", tab.pdf(format="A4"))) <= 4


def test_what_is_open_on_the_screen_is_printed(view):
    tab = view(width=700)
    opened, closed = tab.locator("details", has_text="The figures as a table").all()[:2]
    opened.evaluate("part => part.open = true")
    tab.emulate_media(media="print")
    assert opened.locator("table").is_visible() and not closed.is_visible()


def test_a_chart_is_zoomed_by_a_wheel_with_ctrl_and_shows_all_again(view):
    tab = view()
    chart = tab.locator('[data-figure="rounds-accuracy"][data-panel="0"]')
    chart.scroll_into_view_if_needed()
    rounds = chart.locator(".role-axis-label").first.locator("text")

    def labels():  # Vega leaves them in any order
        return sorted(rounds.all_text_contents())

    before = labels()
    box = chart.bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 100)
    tab.mouse.wheel(0, -300)
    assert labels() == before  # the page is scrolled, as everywhere
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 100)
    tab.keyboard.down("Control")
    tab.mouse.wheel(0, -300)
    tab.keyboard.up("Control")
    tab.wait_for_timeout(300)
    assert labels() != before
    tab.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + 100)
    tab.wait_for_timeout(300)
    assert labels() == before


def test_the_filter_leaves_out_settings_everywhere(view):
    tab = view()
    rows = tab.locator("#glance tr[data-s]:visible")
    figures = tab.locator("#rounds-accuracy figure:visible")
    everything = rows.count(), figures.count()
    tab.get_by_label("Show settings whose name contains").fill("nbafl ε=1")
    assert rows.count() == 1 and "NbAFL" in rows.inner_text()
    assert "1 of 6" in tab.locator("#live").inner_text()
    assert figures.count() == 1
    tab.get_by_label("Show settings whose name contains").fill("")
    assert (rows.count(), figures.count()) == everything


def test_on_a_phone_the_button_is_on_one_line_and_tables_scroll(view):
    tab = view(width=390)
    assert tab.locator("#theme").bounding_box()["height"] < 40
    table = tab.locator("#glance .scroll")
    assert table.evaluate("part => part.scrollWidth > part.clientWidth")
    table.evaluate("part => part.scrollLeft = 100")
    name = tab.locator("#glance tr[data-s] th").first.bounding_box()
    assert name["x"] >= 0  # the setting's name stays


def test_results_are_sorted_by_value(view):
    tab = view()
    head = tab.locator("table.sortable thead button", has_text="ε")
    cells = "rows => rows.map(row => row.cells[2].textContent)"
    head.click()
    ascending = tab.locator("table.sortable tbody:first-of-type tr[data-s]").evaluate_all(cells)
    head.click()
    descending = tab.locator("table.sortable tbody:first-of-type tr[data-s]").evaluate_all(cells)
    finite = [float(cell.split()[0]) for cell in ascending if re.match(r"\d", cell)]
    assert finite == sorted(finite) and len(finite) >= 4
    assert descending[0].split()[0] in ("∞", "–")


def test_what_a_run_contains_stays_text(view, tmp_path):
    folder = write_run(tmp_path / "run", f"strategy.note={EVIL}", done=4, extra={"note": EVIL})
    folder.save_error(EVIL)
    path = tmp_path / "report.html"
    path.write_text(render(load_runs(folder.path), datetime(2026, 1, 2)), encoding="utf-8")
    tab = view(path)
    assert outside(tab) == []
    assert tab.evaluate("typeof window.hacked") == "undefined"
    assert tab.locator("#failures pre").inner_text() == EVIL


def luminance(colour):
    """Relative luminance (WCAG 2) of "rgb(r, g, b)"."""
    shares = [int(v) / 255 for v in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)
