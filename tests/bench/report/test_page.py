import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from dg_lsp.bench.report.page import benchmark_page
from dg_lsp.bench.runs import Machine, Run, RunHeader
from dg_lsp.errors import InputFileError
from dg_lsp.postprocess.validate import Reason

VOID = {"meta", "input", "br"}
EMPTY_RUN = Run(RunHeader("infill", Machine("c", 1, "o", "3", "0", None, None, 1), "m", None), ())


class Tree(HTMLParser):
    """Elements with their attributes, their ancestors and their text; every tag must be closed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements = []
        self._open = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        assert len({name for name, _ in attrs}) == len(attrs), f"duplicate attribute of {tag}"
        element = {"tag": tag, "attributes": dict(attrs), "within": list(self._open), "text": ""}
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag):
        assert self._open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self._open:
            element["text"] += data.replace("\N{NO-BREAK SPACE}", " ")

    def all(self, tag):
        return [element for element in self.elements if element["tag"] == tag]

    def texts(self, tag):
        return [element["text"] for element in self.all(tag)]

    def values(self, name):
        return [element["attributes"][name] for element in self.elements if name in element["attributes"]]


@pytest.fixture
def tree(page):
    return Tree(page.html())


@pytest.fixture
def hostile(hostile_page):
    return Tree(hostile_page.html())


def test_a_page_has_all_sections(tree):
    assert tree.texts("title") == tree.texts("h1") == ["bench plain"]
    headings = ["Numbers", "Time and steps", "Films", "Misses", "Machine and options"]
    assert tree.texts("h2") == headings
    [navigation] = tree.texts("nav")
    assert all(heading in navigation for heading in headings)
    [body] = tree.texts("body")
    for fact in ("a note plain", "Ratios plain", "sha256 of plain.jsonl", "cd" * 32, "settings.a", "1, 2", "no"):
        assert fact in body
    assert "settings.gone" not in body
    assert "20 % of 5 requests had a useful edit within 250 ms by diffusion, 20 % by autoregressive." in body


def test_a_page_loads_nothing(hostile):
    for name in ("src", "srcset", "action", "data", "poster", "xlink:href", "ping", "formaction", "style"):
        assert not hostile.values(name)
    assert all(link.startswith("#") for link in hostile.values("href"))
    assert not {"link", "img", "iframe", "object", "base", "form"} & {element["tag"] for element in hostile.elements}
    own = "".join(hostile.texts("style") + hostile.texts("script"))
    assert "url(" not in own and "@import" not in own and "http" not in own


def test_the_content_policy_allows_only_our_style_and_script(tree):
    [policy] = [meta["attributes"]["content"] for meta in tree.all("meta") if "http-equiv" in meta["attributes"]]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for tag in ("style", "script"):
        [text] = tree.texts(tag)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"


def test_hostile_text_remains_visible_text(hostile, hostile_page):
    assert len(hostile.all("script")) == 1
    assert not [name for element in hostile.elements for name in element["attributes"] if name.startswith("on")]
    [heading] = hostile.texts("h1")
    assert heading.startswith(
        "bench </script></style><img src=x onerror=alert(1)>\"'><svg onload=alert(2)> <!-- ]]> &lt;"
    )
    assert "{{ 7 * 7 }}" in heading and "␀␛[31m" in heading
    text = hostile_page.html()
    text.encode("utf-8")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\ud800-\udfff]", text)


def test_anchors_and_labels_refer_to_existing_elements(hostile):
    ids = hostile.values("id")
    assert len(ids) == len(set(ids))
    assert set(hostile.values("aria-labelledby")) | {link[1:] for link in hostile.values("href")} <= set(ids)


def test_charts_have_a_description_and_a_table(tree):
    figures = tree.all("figure")
    assert len(figures) == 3
    for figure in figures:
        within = [element for element in tree.elements if figure in element["within"]]
        drawings = [one for one in within if one["tag"] == "svg"]
        assert [one["attributes"]["class"] for one in drawings] == ["wide", "narrow"]
        assert all(one["attributes"]["role"] == "img" and one["attributes"]["aria-label"] for one in drawings)
        [table] = [one for one in within if one["tag"] == "table"]
        assert "diffusion" in table["text"]


def test_tables_have_captions_headings_and_equal_rows(hostile):
    tables = hostile.all("table")
    assert [caption["within"][-1] for caption in hostile.all("caption")] == tables
    assert all(text.strip() for text in hostile.texts("caption"))
    assert {th["attributes"].get("scope") for th in hostile.all("th")} == {"col", "row", "rowgroup"}
    for table in tables:
        assert table["within"][-1]["attributes"]["tabindex"] == "0"  # a scrolling table needs the keyboard
        cells = [one for one in hostile.elements if one["tag"] in ("th", "td") and table in one["within"]]
        widths = {}
        for cell in cells:
            row = id(cell["within"][-1])
            widths[row] = widths.get(row, 0) + int(cell["attributes"].get("colspan", 1))
        assert len(set(widths.values())) == 1


def test_misses_are_counted_by_reason_with_examples(make_attempt):
    wrong = [make_attempt(f"w{i}", "a", (9, f"bad {i}\n{'x' * 999}")) for i in range(8)]
    other = [make_attempt("ok", "a"), make_attempt("e", "b", shown=(), rejection="empty")]
    late = [make_attempt("late", "b", (1000.5, "return a")), make_attempt("early", "b", (10, "return a"), (20, "b"))]
    tree = Tree(benchmark_page("t", Run(EMPTY_RUN.header, (*wrong, *other, *late)), []).html())
    [table] = [one for one in tree.all("table") if "Without a useful edit" in one["text"]]
    rows = [one["text"] for one in tree.all("tr") if table in one["within"]]
    assert rows == ["reasonab", "wrong8 (88.9 %)–", "empty–1 (33.3 %)", "late–1 (33.3 %)"]
    examples = [one["text"] for one in tree.all("details") if one["attributes"].get("class") == "examples"]
    assert "wrong: 5 examples of 8" in examples[0]
    assert examples[0].count("bad ") == 5 and "x" * 199 + "…" in examples[0] and "x" * 200 not in examples[0]
    assert "nothing" in examples[1]


@pytest.mark.parametrize("reason", Reason)
def test_every_rejection_is_explained(make_attempt, reason):
    page = benchmark_page("t", Run(EMPTY_RUN.header, (make_attempt("x", shown=(), rejection=reason.value),)), [])
    [examples] = [block for section in page.sections for block in section.blocks if block.kind == "examples"]
    assert examples.meaning


def test_a_run_without_attempts_has_a_page():
    tree = Tree(benchmark_page("nothing", EMPTY_RUN, []).html())
    assert "No request was answered." in tree.texts("body")[0]
    assert tree.texts("h2") == ["Misses", "Machine and options"]


def test_a_page_replaces_the_old_file_in_one_step(tmp_path, page):
    path = tmp_path / "out.html"
    path.write_text("old")
    page.write(path)
    assert path.read_text(encoding="utf-8") == page.html()
    assert [one.name for one in tmp_path.iterdir()] == ["out.html"]
    (tmp_path / "out.html.part").mkdir()
    path.write_text("old")
    with pytest.raises(InputFileError, match="cannot write"):
        page.write(path)
    assert path.read_text() == "old"
