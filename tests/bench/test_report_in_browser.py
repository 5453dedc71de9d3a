"""The page in a real browser."""

import base64

import pytest

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
  one.checkVisibility() && !one.closest(".scroller, svg, .skip") &&
  one.getBoundingClientRect().right > innerWidth + 0.5
).map((one) => one.outerHTML.slice(0, 80))
"""


@pytest.fixture
def opened(chromium, tmp_path, page):
    page.write(tmp_path / "page.html")
    chromium.open(tmp_path / "page.html")
    return chromium


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_sends_no_requests_and_causes_no_errors(chromium, tmp_path, hostile_page, scheme):
    path = tmp_path / "page.html"
    hostile_page.write(path)
    chromium.open(path, scheme=scheme)
    chromium.run(OPEN_ALL)
    methods = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Page.javascriptDialogOpening")
    assert [event for event in chromium.events if event.get("method") in methods] == []
    sent = [event for event in chromium.events if event.get("method") == "Network.requestWillBeSent"]
    assert [event["params"]["request"]["url"] for event in sent] == [path.as_uri()]
    assert chromium.run("document.images.length + document.scripts.length") == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(opened, scheme):
    opened.scheme(scheme)
    opened.run(OPEN_ALL)
    checked = opened.run(LOW_CONTRAST)
    assert checked["num"] > 100
    assert checked["found"] == []


@pytest.mark.parametrize("width", [320, 800])
@pytest.mark.parametrize("which", ["page", "hostile_page"])
def test_nothing_is_wider_than_the_page(chromium, tmp_path, request, which, width):
    path = tmp_path / "page.html"
    request.getfixturevalue(which).write(path)
    chromium.open(path, width=width, height=700)
    chromium.run(OPEN_ALL)
    assert chromium.run("document.documentElement.scrollWidth") == width
    assert chromium.run(OVERFLOWING) == []


SCREEN = """(() => {
  const [screen, output] = [".timeline .screen", ".timeline output"].map((one) => document.querySelector(one));
  return [screen.textContent, screen.querySelector(".ghost").textContent, output.textContent];
})()"""


def test_the_controls_of_a_replay_choose_what_is_on_the_screen(opened):
    screen, ghost, sentence = opened.run(SCREEN)
    assert (screen, ghost) == ("plainabplainplain", "plain")  # the first useful item
    assert sentence == "0.3 of 0.4 s · Shown after 20 ms. Verdict: useful."
    opened.run("document.querySelector('[data-verdict=missed]').click()")
    assert opened.run(SCREEN)[0] == "plainaplain"
    opened.run("document.querySelector('.timeline [data-do=next]').click()")
    opened.run("document.querySelector('.timeline [data-do=next]').click()")
    assert opened.run(SCREEN)[2].endswith("Verdict: wrong.")
    opened.run("document.querySelector('.timeline [data-do=back]').click()")
    assert opened.run(SCREEN) == [screen, ghost, sentence]


def test_a_replay_plays_to_its_end(opened):
    opened.run("document.querySelector('.timeline [data-do=play]').click()")
    opened.run(
        """new Promise((done) => {
          const play = document.querySelector(".timeline [data-do=play]");
          const wait = () => (play.textContent === "Play" ? done() : setTimeout(wait, 20));
          wait();
        })"""
    )
    assert opened.run(SCREEN)[2] == "0.4 of 0.4 s · Accepted. Verdict: wrong."


def test_a_printed_page_is_complete_and_light(opened):
    opened.scheme("dark", media="print")
    assert opened.run("getComputedStyle(document.documentElement).colorScheme") == "light"
    assert not opened.run("document.querySelector('.controls').checkVisibility()")
    opened.size(794, 1123)  # A4
    assert opened.run("document.documentElement.scrollWidth") == 794
    assert base64.b64decode(opened.call("Page.printToPDF")["data"]).startswith(b"%PDF")
    assert opened.run("[...document.querySelectorAll('details')].every((one) => one.open)")
    opened.scheme("light")


def test_without_scripts_a_replay_shows_the_whole_text(opened, tmp_path):
    opened.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        opened.open(tmp_path / "page.html")
        shown = "[...document.querySelectorAll('%s')].filter((one) => one.checkVisibility()).length"
        assert opened.run("document.querySelector('.screen').textContent") == "plainabcplain"
        assert opened.run(shown % ".screen") == 1
        assert opened.run(shown % ".controls") == 0
    finally:
        opened.call("Emulation.setScriptExecutionDisabled", value=False)
