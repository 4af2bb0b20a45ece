"""The page in a real browser: it works for everybody, without a network, on screen and paper."""

import re
import shutil
from datetime import datetime

import pytest

from fl_app.report.page import page as render
from fl_app.report.reading import read
from tests.fl_app.report.folders import write_run

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
    path.write_text(render(read(sweep_folder), datetime(2026, 1, 2, 3, 4)), encoding="utf-8")
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
    assert tab.locator("svg.chart .line").count() > 5
    assert outside(tab) == []
    assert [t for t in tab.trouble if t.startswith("file:")] == [report.as_uri()]


@pytest.mark.parametrize("width", [360, 768])
def test_nothing_sticks_out_of_a_phone(view, width):
    tab = view(width=width)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    for details in tab.locator("details").all():
        details.evaluate("part => part.open = true")
    assert tab.evaluate("document.documentElement.scrollWidth") == width


def test_a_setting_is_toggled_in_every_chart_by_keyboard(view):
    tab = view()
    lines = tab.locator('.chart g[data-s="s0"]')
    shown = "parts => parts.filter(part => part.getClientRects().length > 0).length"
    before = lines.evaluate_all(shown)
    button = tab.locator('.legend button[data-keys="s0"]').first
    button.focus()
    tab.keyboard.press("Enter")
    assert before >= 4
    assert lines.evaluate_all(shown) == 0
    assert set(
        tab.locator('.legend button[data-keys="s0"]').evaluate_all(
            "parts => parts.map(part => part.getAttribute('aria-pressed'))"
        )
    ) == {"false"}
    tab.keyboard.press("Enter")
    assert lines.evaluate_all(shown) == before


def test_points_are_told_on_hover_and_by_arrow_keys(view):
    tab = view()
    plot = tab.locator("#epsilon-1")
    mark = plot.locator(".dot").first
    mark.scroll_into_view_if_needed()
    mark.hover(force=True)
    assert re.search(r"ε \d+.*accuracy 0\.\d+", tab.locator("#tip").inner_text())
    tab.mouse.move(1, 1)
    assert tab.locator("#tip").is_hidden()
    plot.focus()
    tab.keyboard.press("ArrowRight")
    first = tab.locator("#live").inner_text()
    assert first == tab.locator("#tip").inner_text().replace("\n", ": ")
    tab.keyboard.press("ArrowDown")
    assert tab.locator("#live").inner_text() != first
    tab.keyboard.press("Escape")
    assert tab.locator("#tip").is_hidden()


def test_marks_lie_where_their_points_are(view):
    tab = view()
    places = tab.evaluate("JSON.parse(document.getElementById('points').textContent)['epsilon-1']")
    wanted = [tuple(point[:2]) for line in places if line["n"] for point in line["p"]]
    marks = tab.locator("#epsilon-1 .chart").evaluate(
        """chart => {
            const area = chart.getBoundingClientRect();
            return [...chart.querySelectorAll("use")].map(mark => {
                const box = mark.getBoundingClientRect();
                const x = box.x + box.width / 2 - area.x, y = box.y + box.height / 2 - area.y;
                return [100 * x / area.width, y];
            });
        }"""
    )
    assert len(marks) == len(wanted)
    for mark, place in zip(marks, wanted, strict=True):
        assert mark == pytest.approx(place, abs=1.5)


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
    lines = tab.locator(".chart .line").evaluate_all(every, "stroke")
    assert texts and lines
    assert min(contrast(luminance(colour), paper) for colour in texts) >= 4.5
    assert min(contrast(luminance(colour), paper) for colour in lines) >= 3


def test_a_printed_sweep_is_light_as_wide_as_the_paper_and_at_most_four_pages(view):
    tab = view(width=700, color_scheme="dark")  # A4 within its margins
    tab.emulate_media(media="print")
    assert luminance(tab.evaluate("getComputedStyle(document.body).backgroundColor")) > 0.9
    assert tab.evaluate("document.documentElement.scrollWidth") == 700
    assert not any(button.is_visible() for button in tab.locator("#theme, .whole-range").all())
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", tab.pdf(format="A4"))) <= 4


def test_what_is_open_on_the_screen_is_printed(view):
    tab = view(width=700)
    opened, closed = tab.locator("details", has_text="The figures as a table").all()[:2]
    opened.evaluate("part => part.open = true")
    tab.emulate_media(media="print")
    assert opened.locator("table").is_visible() and not closed.is_visible()


def test_a_chart_is_zoomed_by_a_drag_and_by_keys_and_shows_all_again(view):
    tab = view()
    plot = tab.locator("#rounds-accuracy-1")
    whole = plot.locator("xpath=..").get_by_role("button", name="Whole range")
    names = "chart => [...chart.querySelectorAll('.tick')].filter(t => t.checkVisibility())"
    names += ".map(t => t.textContent)"
    marks = "chart => [...chart.querySelectorAll('use')].filter(m => m.checkVisibility())"
    marks += ".map(m => [m.getAttribute('x'), m.getAttribute('y')].map(parseFloat))"
    chart = plot.locator(".chart").first
    before, places = chart.evaluate(names), chart.evaluate(marks)
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 2)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"], box["y"] + box["height"] / 2)
    tab.mouse.up()
    assert "0" in before and "0" not in chart.evaluate(names)
    assert 0 < len(chart.evaluate(marks)) < len(places)
    assert all(0 <= x <= 100 for x, _ in chart.evaluate(marks))
    whole.click()
    assert whole.is_hidden()
    assert (chart.evaluate(names), chart.evaluate(marks)) == (before, places)
    for key, is_whole in (
        ("ArrowRight", True),
        ("+", False),
        ("-", True),
        ("+", False),
        ("0", True),
    ):
        plot.press(key)
        assert whole.is_hidden() == is_whole, key


def test_the_filter_leaves_out_settings_everywhere(view):
    tab = view()
    rows = tab.locator("#glance tbody tr:visible")
    buttons = tab.locator("#rounds-accuracy .legend button:visible")
    everything = rows.count(), buttons.count()
    tab.get_by_label("Show settings whose name contains").fill("nbafl ε=1")
    assert rows.count() == buttons.count() == 1
    assert "NbAFL" in rows.inner_text() and "1 of 6" in tab.locator("#live").inner_text()
    assert tab.locator("#rounds-accuracy figure:visible").count() == 1
    tab.get_by_label("Show settings whose name contains").fill("")
    assert (rows.count(), buttons.count()) == everything


@pytest.mark.parametrize(("scheme", "button"), [("dark", None), ("light", "Dark colours")])
def test_partitions_are_drawn_on_dark_paper_in_dark_colours(view, scheme, button):
    tab = view(color_scheme=scheme)
    if button is not None:
        assert (
            tab.locator(".pictures img").first.evaluate("i => getComputedStyle(i).filter") == "none"
        )
        tab.get_by_role("button", name=button).click()
    assert "invert" in tab.locator(".pictures img").first.evaluate(
        "i => getComputedStyle(i).filter"
    )


def test_on_a_phone_the_button_is_on_one_line_and_tables_scroll(view):
    tab = view(width=390)
    assert tab.locator("#theme").bounding_box()["height"] < 40
    table = tab.locator("#glance .scroll")
    assert table.evaluate("part => part.scrollWidth > part.clientWidth")
    table.evaluate("part => part.scrollLeft = 100")
    name = tab.locator("#glance tbody th").first.bounding_box()
    assert name["x"] >= 0  # the setting's name stays


def test_results_are_sorted_by_value(view):
    tab = view()
    head = tab.locator("table.sortable thead button", has_text="ε proven")
    cells = "rows => rows.map(row => row.cells[3].textContent)"
    head.click()
    ascending = tab.locator("table.sortable tbody tr").evaluate_all(cells)
    head.click()
    descending = tab.locator("table.sortable tbody tr").evaluate_all(cells)
    finite = [float(cell) for cell in ascending if re.match(r"\d", cell)]
    assert finite == sorted(finite) and len(finite) >= 4
    assert descending[0] in ("∞", "–")


def test_what_a_run_contains_stays_text(view, tmp_path):
    folder = write_run(tmp_path / "run", f"strategy.note={EVIL}", done=4, extra={"note": EVIL})
    folder.save_error(EVIL)
    path = tmp_path / "report.html"
    path.write_text(render(read(folder.path), datetime(2026, 1, 2)), encoding="utf-8")
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
