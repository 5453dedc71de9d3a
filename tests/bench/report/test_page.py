import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dg_lsp.bench.machine import Machine
from dg_lsp.bench.report.page import check_report_path, page, write_report
from dg_lsp.bench.report.record import Report
from dg_lsp.bench.runs import Header
from dg_lsp.errors import InputFileError

VOID = {"meta", "input", "br"}


class Tree(HTMLParser):
    """Elements with their attributes, their ancestors and their text; refuses tags that do not close."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements = []
        self._open = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute of {tag} comes twice"
        element = {"tag": tag, "attributes": dict(attrs), "within": list(self._open), "text": ""}
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag):
        assert self._open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self._open:
            element["text"] += data

    def all(self, tag):
        return [element for element in self.elements if element["tag"] == tag]

    def with_attribute(self, name):
        return [element for element in self.elements if name in element["attributes"]]


@pytest.fixture
def tree(report):
    return Tree(page(report))


@pytest.fixture
def hostile(hostile_report):
    return Tree(page(hostile_report))


def test_the_page_says_what_it_is(tree):
    [html] = tree.all("html")
    assert html["attributes"]["lang"] == "en"
    assert [title["text"] for title in tree.all("title")] == ["bench plain"]
    assert [heading["text"] for heading in tree.all("h1")] == ["bench plain"]
    headings = [heading["text"] for heading in tree.all("h2")]
    assert headings == [
        "Numbers",
        "Time and steps",
        "Films",
        "Misses",
        "Machine and options",
        "What each number says",
    ]
    [nav] = tree.all("nav")
    assert all(heading in nav["text"] for heading in headings)


def test_nothing_is_loaded_from_anywhere(hostile):
    for name in ("src", "srcset", "action", "background", "data", "poster", "xlink:href", "ping", "formaction"):
        assert not hostile.with_attribute(name)
    assert all(element["attributes"]["href"].startswith("#") for element in hostile.with_attribute("href"))
    assert not {"link", "img", "iframe", "object", "base", "form"} & {element["tag"] for element in hostile.elements}
    style = "".join(element["text"] for element in hostile.all("style"))
    assert "url(" not in style
    assert "@import" not in style
    assert "http" not in "".join(element["text"] for element in hostile.all("script")) + style


def test_only_our_own_style_and_script_are_allowed_to_run(tree):
    import base64
    import hashlib

    [policy] = [meta["attributes"]["content"] for meta in tree.all("meta") if "http-equiv" in meta["attributes"]]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for tag in ("style", "script"):
        [element] = tree.all(tag)
        digest = base64.b64encode(hashlib.sha256(element["text"].encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"
    assert not tree.with_attribute("style"), "the policy forbids style attributes"


def test_hostile_text_stays_text(hostile, hostile_text):
    assert len(hostile.all("script")) == 1
    assert not hostile.all("img")
    assert not [name for element in hostile.elements for name in element["attributes"] if name.startswith("on")]
    told = "</script></style><img src=x onerror=alert(1)>\"'><svg onload=alert(2)> <!-- ]]> &lt; "
    [h1] = hostile.all("h1")
    assert h1["text"].startswith(f"bench {told}")
    shown = [element["text"] for element in hostile.all("code") if told in element["text"]]
    assert len(shown) >= 4


def test_hostile_text_cannot_hide(hostile_report):
    text = page(hostile_report)
    text.encode("utf-8")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\ud800-\udfff]", text)
    assert "␀␛[31m" in text


def test_a_dollar_in_the_text_is_no_placeholder(hostile):
    [h1] = hostile.all("h1")
    assert h1["text"].endswith("$lead")


def test_anchors_and_names_lead_somewhere(hostile):
    ids = [element["attributes"]["id"] for element in hostile.with_attribute("id")]
    assert len(ids) == len(set(ids))
    for name in ("aria-labelledby", "aria-controls", "aria-describedby"):
        assert {element["attributes"][name] for element in hostile.with_attribute(name)} <= set(ids)
    assert {element["attributes"]["href"][1:] for element in hostile.with_attribute("href")} <= set(ids)


def test_every_chart_says_in_words_what_it_shows_and_has_its_numbers_as_a_table(tree):
    drawings = [svg for svg in tree.all("svg") if svg["attributes"].get("aria-hidden") != "true"]
    assert all(svg["attributes"]["role"] == "img" and svg["attributes"]["aria-label"] for svg in drawings)
    figures = tree.all("figure")
    assert len(figures) == 3
    for figure in figures:
        within = [element for element in tree.elements if figure in element["within"]]
        assert len([one for one in within if one in drawings]) == 2, "one drawing for wide pages, one for narrow ones"
        details = [one for one in within if one["tag"] == "details"]
        tables = [one for one in within if one["tag"] == "table"]
        assert len(details) == len(tables) == 1
        assert "diffusion" in tables[0]["text"]


def test_every_table_says_what_it_is_about_and_which_cells_are_headings(hostile):
    tables = hostile.all("table")
    captions = hostile.all("caption")
    assert [caption["within"][-1] for caption in captions] == tables
    assert all(caption["text"].strip() for caption in captions)
    assert {th["attributes"].get("scope") for th in hostile.all("th")} == {"col", "row", "rowgroup"}
    for table in tables:
        assert table["within"][-1]["attributes"]["tabindex"] == "0", "a scrolling table is reached by the keyboard"


def test_rows_are_as_wide_as_their_heads(hostile):
    rows = {}
    for cell in (element for element in hostile.elements if element["tag"] in ("th", "td")):
        row = cell["within"][-1]
        rows.setdefault(id(row), (row, []))[1].append(int(cell["attributes"].get("colspan", 1)))
    widths = {}
    for row, spans in rows.values():
        table = next(element for element in reversed(row["within"]) if element["tag"] == "table")
        widths.setdefault(id(table), set()).add(sum(spans))
    assert widths
    assert all(len(found) == 1 for found in widths.values())


def test_everything_that_was_measured_with_is_there(tree):
    text = "".join(element["text"] for element in tree.all("body"))
    for fact in (
        "2026-01-31",
        "cpu",
        "versions.dg-lsp",
        "suffix_lines",
        "length_knowledge: none",
        "Ratios plain",
        "1.4×",
    ):
        assert fact in text
    assert "gone" not in text


def test_an_empty_report_is_a_page_too():
    tree = Tree(page(Report("nothing", {}, {}, {}, date="2026-01-31")))
    assert "No request was answered." in tree.all("body")[0]["text"]
    tree = Tree(page(Report("nothing", {}, {}, {"diffusion": []}, date="2026-01-31")))
    assert "diffusion" in tree.all("body")[0]["text"]
    assert "Films" not in [heading["text"] for heading in tree.all("h2")]


def test_a_run_is_a_report(make_attempt):
    machine = Machine("a cpu", 2, "Linux", "3.11", "0.1", "0.3", None, 2)
    header = Header("infill", machine, "dg-mini", "ab" * 32, {"sites.jsonl": "cd" * 32}, {"seed": 1})
    attempts = [make_attempt("a", "auto"), make_attempt("a", "autoregressive"), make_attempt("b", "auto")]
    report = Report.of_run("infill", header, attempts, notes=["a note"])
    assert {way: [one.site for one in listed] for way, listed in report.attempts.items()} == {
        "auto": ["a", "b"],
        "autoregressive": ["a"],
    }
    text = page(report)
    for fact in (
        "ab" * 32,
        "sha256 of sites.jsonl",
        "cd" * 32,
        "dg-mini",
        "llama-cpp-python",
        "a cpu",
        "a note",
        "seed",
    ):
        assert fact in text


def test_the_file_is_written_at_once_and_nothing_else_stays(tmp_path, report):
    path = tmp_path / "out.html"
    path.write_text("old")
    write_report(path, report)
    assert path.read_text(encoding="utf-8") == page(report)
    assert [one.name for one in tmp_path.iterdir()] == ["out.html"]


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path, report):
    (tmp_path / "link.html").symlink_to(tmp_path / "out.html")
    write_report(tmp_path / "link.html", report)
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "out.html").read_text(encoding="utf-8") == page(report)
    (tmp_path / "null").symlink_to("/dev/null")
    write_report(tmp_path / "null", report)
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("name", ["", "gone/out.html"])
def test_a_bad_place_is_refused_before_the_work(tmp_path, report, name):
    with pytest.raises(InputFileError):
        check_report_path(tmp_path / name)
    with pytest.raises(InputFileError):
        write_report(tmp_path / name, report)


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path, report):
    (tmp_path / "out.html.part").mkdir()
    (tmp_path / "out.html").write_text("old")
    with pytest.raises(InputFileError, match="cannot write"):
        write_report(tmp_path / "out.html", report)
    assert (tmp_path / "out.html").read_text() == "old"
