"""The page in a real browser. Nothing here looks at a clock: what takes time is waited for."""

import base64
import json

import pytest

from dg_lsp.bench.report.page import write_report

TAB, ENTER, SPACE, END, HOME, LEFT, RIGHT = 9, 13, 32, 35, 36, 37, 39

OPEN_ALL = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"

LOW_CONTRAST = """
(() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
    const v = c[i] / 255;
    return sum + weight * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  }, 0);
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = rgb(getComputedStyle(one).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    throw new Error("no background");
  };
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let num = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility({ visibilityProperty: true })) continue;
    const style = getComputedStyle(element);
    const [one, other] = [rgb(element.closest("svg") ? style.fill : style.color), behind(element)].map(light);
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    num += 1;
    if (ratio < 4.5) found.push(`${walker.currentNode.data.trim()}: ${ratio.toFixed(2)}`);
  }
  return { num, found };
})()
"""

OVERFLOWING = """
[...document.querySelectorAll("body *")].filter((one) =>
  one.checkVisibility() && !one.closest(".scroller, svg, .sr, .skip") &&
  one.getBoundingClientRect().right > innerWidth + 0.5
).map((one) => one.outerHTML.slice(0, 80))
"""


CUT_OFF = """
[...document.querySelectorAll("svg[role=img] text")].filter((one) => one.checkVisibility()).filter((one) => {
  const text = one.getBoundingClientRect(), drawing = one.closest("svg").getBoundingClientRect();
  return text.left < drawing.left - 0.5 || text.right > drawing.right + 0.5 || text.bottom > drawing.bottom + 0.5;
}).map((one) => one.textContent)
"""


@pytest.fixture
def opened(chromium, tmp_path, report):
    path = tmp_path / "report.html"
    write_report(path, report)
    chromium.open(path)
    return chromium


def complaints(browser):
    """Errors, warnings, refusals of the content policy and whatever else the console would show."""
    methods = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Page.javascriptDialogOpening")
    browser.run("0")  # what was on its way is here now
    return [event for event in browser.events if event.get("method") in methods]


def requests(browser):
    return [
        event["params"]["request"]["url"]
        for event in browser.events
        if event.get("method") == "Network.requestWillBeSent"
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_asks_for_nothing_and_complains_of_nothing(chromium, tmp_path, hostile_report, scheme):
    path = tmp_path / "report.html"
    write_report(path, hostile_report)
    chromium.open(path, scheme=scheme)
    chromium.run(OPEN_ALL)
    assert complaints(chromium) == []
    assert requests(chromium) == [path.as_uri()]
    assert chromium.run("document.images.length + document.scripts.length") == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_what_is_behind_it(opened, scheme):
    opened.scheme(scheme)
    opened.run(OPEN_ALL)
    for step in (1, 2, 3):
        opened.run(f"document.querySelector('tr[data-step=\"{step}\"]').click()")
        checked = opened.run(LOW_CONTRAST)
        assert checked["num"] > 100
        assert checked["found"] == []


def test_both_themes_differ_and_the_reader_may_choose(opened):
    shade = "getComputedStyle(document.documentElement).backgroundColor"
    light = opened.run(shade)
    opened.scheme("dark")
    dark = opened.run(shade)
    assert light != dark
    opened.run("document.querySelector('.theme input:checked').focus()")
    opened.press("ArrowRight", RIGHT)
    assert opened.run(shade) == light
    opened.press("ArrowRight", RIGHT)
    assert opened.run(shade) == dark
    opened.scheme("light")
    assert opened.run(shade) == dark, "what the reader chose outweighs the system"


@pytest.mark.parametrize("width", [320, 360, 800])
@pytest.mark.parametrize("which", ["report", "hostile_report"])
def test_nothing_is_wider_than_the_page(chromium, tmp_path, request, which, width):
    path = tmp_path / "report.html"
    write_report(path, request.getfixturevalue(which))
    chromium.open(path, width=width, height=700)
    chromium.run(OPEN_ALL)
    assert chromium.run("document.documentElement.scrollWidth") == width
    assert chromium.run(OVERFLOWING) == []
    assert chromium.run("document.querySelectorAll('svg[role=img]').length") == 6
    shown = "[...document.querySelectorAll('svg[role=img]')].filter((one) => one.checkVisibility())"
    assert chromium.run(f"{shown}.length") == 3
    assert chromium.run(CUT_OFF) == []
    # text in drawings is not scaled down to nothing
    least = f"Math.min(...{shown}.map((one) => one.getBoundingClientRect().width / one.viewBox.baseVal.width))"
    assert chromium.run(least) > 0.8


def test_the_first_stop_of_the_keyboard_skips_to_the_numbers(opened):
    opened.press("Tab", TAB)
    assert opened.run("document.activeElement.className") == "skip"
    assert opened.run("document.activeElement.getBoundingClientRect().top") >= 0
    opened.press("Enter", ENTER, "\r")
    assert opened.run("document.activeElement.id || location.hash") in ("main", "#main")


def test_the_keyboard_reaches_everything_in_reading_order(opened):
    opened.run("document.activeElement.blur()")
    stops = "[...document.querySelectorAll('a, input, button, summary, [tabindex=\"0\"]')]"
    places, seen = [], set()
    for _ in range(opened.run(f"{stops}.length")):
        opened.press("Tab", TAB)
        place = opened.run(f"{stops}.indexOf(document.activeElement)")
        if place in seen or place < 0:
            break
        seen.add(place)
        places.append(place)
    assert places == sorted(places)
    kinds = set(opened.run(f"{json.dumps(places)}.map((i) => {stops}[i].tagName.toLowerCase())"))
    assert {"a", "input", "button", "summary", "div"} <= kinds


def step_of(browser):
    """What the first film shows: the slider, the code, the lit row, the rows that are still hidden."""
    return browser.run(
        """(() => {
          const film = document.querySelector(".film");
          const code = [...film.querySelectorAll(".code")].filter((one) => one.checkVisibility());
          const rows = [...film.querySelectorAll("tr[data-step]")];
          return [
            film.querySelector("input").value, code.length, code[0].dataset.step,
            rows.filter((row) => row.classList.contains("now")).map((row) => row.dataset.step).join(),
            rows.filter((row) => getComputedStyle(row.cells[1]).visibility === "hidden").length,
            film.querySelector("output").textContent,
          ];
        })()"""
    )


def test_a_film_is_stepped_through_by_the_keyboard(opened):
    opened.run("document.querySelector('.film input').focus()")
    assert step_of(opened) == ["3", 1, "3", "3", 0, "Step 3 of 3: 6 of 6 positions accepted"]
    opened.press("ArrowLeft", LEFT)
    assert step_of(opened) == ["2", 1, "2", "2", 1, "Step 2 of 3: 4 of 6 positions accepted"]
    opened.press("Home", HOME)
    assert step_of(opened)[0] == "1"
    opened.press("End", END)
    assert step_of(opened)[0] == "3"
    # the same keys on the buttons beside it
    opened.run("document.querySelector('.film [data-do=back]').focus()")
    opened.press("ArrowLeft", LEFT)
    opened.press("Enter", ENTER, "\r")
    assert step_of(opened)[:4] == ["1", 1, "1", "1"]
    opened.press("ArrowRight", RIGHT)
    assert step_of(opened)[0] == "2"
    spoken = opened.run("document.querySelector('.film input').getAttribute('aria-valuetext')")
    assert spoken == "Step 2 of 3: 4 of 6 positions accepted"


def test_a_film_plays_from_its_beginning_and_stops_at_its_end(opened):
    opened.run(
        """(() => {
          const film = document.querySelector(".film"), play = film.querySelector("[data-do=play]");
          window.seen = [];
          const note = () => seen.push([play.textContent, film.querySelector("input").value]);
          const look = new MutationObserver(note);
          look.observe(play, { childList: true });
          look.observe(film.querySelector("output"), { childList: true });
          play.focus();
        })()"""
    )
    opened.press("Enter", ENTER, "\r")
    ended = "new Promise((done) => { const wait = () => %s ? done(seen) : setTimeout(wait, 20); wait(); })"
    seen = opened.run(ended % "(seen.length > 1 && seen.at(-1)[0] === 'Play')")
    assert seen[0] == ["Pause", "1"]
    assert seen[-1] == ["Play", "3"]


def test_space_pauses_a_film_from_its_slider(opened):
    label = "document.querySelector('.film [data-do=play]').textContent"
    opened.run("window.held = setInterval; window.setInterval = () => 7; document.querySelector('.film input').focus()")
    opened.press(" ", SPACE, " ")
    assert opened.run(label) == "Pause"
    opened.press(" ", SPACE, " ")
    assert opened.run(label) == "Play"


def test_films_are_tabs_of_which_one_is_in_the_tab_order(opened):
    state = """[...document.querySelectorAll("[role=tab]")].map((tab) => [
      tab.getAttribute("aria-selected"), tab.tabIndex, document.activeElement === tab,
      document.getElementById(tab.getAttribute("aria-controls")).checkVisibility(),
    ])"""
    opened.run("document.querySelector('[role=tab]').focus()")
    assert opened.run(state) == [["true", 0, True, True], ["false", -1, False, False]]
    opened.press("ArrowRight", RIGHT)
    assert opened.run(state) == [["false", -1, False, False], ["true", 0, True, True]]
    opened.press("ArrowRight", RIGHT)
    assert opened.run(state)[0] == ["true", 0, True, True], "from the last one round to the first"
    opened.press("End", END)
    assert opened.run(state)[1] == ["true", 0, True, True]


def test_everything_that_can_be_used_has_a_name(opened):
    opened.call("Accessibility.enable")
    opened.run(OPEN_ALL)
    nodes = opened.call("Accessibility.getFullAXTree")["nodes"]
    opened.call("Accessibility.disable")
    named = {"image", "button", "slider", "tab", "tabpanel", "tablist", "region", "figure", "table", "radio", "link"}
    found = {}
    for node in nodes:
        if not node["ignored"] and node["role"]["value"] in named:
            found.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    assert named <= set(found)
    assert [role for role, names in found.items() if not all(names)] == []


def test_nothing_moves_by_itself_and_nothing_at_all_where_the_reader_wants_no_motion(opened):
    durations = "[...document.querySelectorAll('*')].map((one) => getComputedStyle(one)).flatMap((one) => "
    durations += "[one.transitionDuration, one.animationDuration]).filter((one) => !['0s', 'auto'].includes(one))"
    assert opened.run(durations) == []
    scrolling = "getComputedStyle(document.documentElement).scrollBehavior"
    assert opened.run(scrolling) == "smooth"
    opened.scheme("light", motion="reduce")
    assert opened.run(scrolling) == "auto"


def test_on_paper_everything_is_there_in_light_colours(opened):
    opened.scheme("dark", media="print")
    assert opened.run("getComputedStyle(document.documentElement).colorScheme") == "light"
    assert opened.run("[...document.querySelectorAll('.film')].every((one) => one.checkVisibility())")
    assert not opened.run("document.querySelector('.controls').checkVisibility()")
    opened.size(794, 1123)  # A4
    assert opened.run("document.documentElement.scrollWidth") == 794
    pdf = base64.b64decode(opened.call("Page.printToPDF")["data"])
    assert pdf.startswith(b"%PDF")
    assert opened.run("[...document.querySelectorAll('details')].every((one) => one.open)")
    opened.scheme("light")


def test_without_a_script_all_films_are_there_at_their_last_step(opened, tmp_path):
    opened.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        opened.open(tmp_path / "report.html")
        shown = "[...document.querySelectorAll('%s')].filter((one) => one.checkVisibility()).length"
        # our own questions are still answered
        assert opened.run(shown % ".film") == 2
        assert opened.run(shown % ".code") == 2
        assert opened.run(shown % ".controls, [role=tablist], .theme") == 0
    finally:
        opened.call("Emulation.setScriptExecutionDisabled", value=False)
