import re
from html.parser import HTMLParser

import pytest

from dg_lsp.bench.audit import audit_page
from dg_lsp.bench.report import benchmark_page
from dg_lsp.bench.runner import Machine, Run, RunHeader
from dg_lsp.cli import run
from dg_lsp.engine.audit import AuditRecord
from dg_lsp.engine.ttfue import Outcome
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
    headings = [
        "The typing, key by key",
        "Numbers",
        "Misses",
        "Machine and options",
    ]
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
    [policy] = [meta["attributes"]["content"] for meta in hostile.all("meta") if "http-equiv" in meta["attributes"]]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    own = "".join(hostile.texts("style") + hostile.texts("script"))
    assert "url(" not in own and "@import" not in own and "http" not in own


def test_hostile_text_remains_visible_text(hostile, hostile_page):
    assert [one["attributes"].get("type") for one in hostile.all("script")] == ["application/json", None]
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


def test_misses_are_counted_by_reason_with_examples(make_attempt):
    wrong = [make_attempt(f"w{i}", "a", (9, f"bad {i}\n{'x' * 9999}")) for i in range(8)]
    other = [make_attempt("ok", "a"), make_attempt("e", "b", text="", rejection="empty")]
    late = [make_attempt("late", "b", (1000.5, "return a")), make_attempt("early", "b", (10, "return a"))]
    tree = Tree(benchmark_page("t", Run(EMPTY_RUN.header, (*wrong, *other, *late)), []).html())
    [table] = [one for one in tree.all("table") if "Without a useful edit" in one["text"]]
    rows = [one["text"] for one in tree.all("tr") if table in one["within"]]
    assert rows == ["reasonab", "wrong8 (88.9 %)–", "empty–1 (33.3 %)", "late–1 (33.3 %)"]
    examples = [one["text"] for one in tree.all("details") if one["attributes"].get("class") == "examples"]
    assert "wrong: 5 examples of 8" in examples[0]
    assert examples[0].count("bad ") == 5 and "xx…" in examples[0] and "x" * 1000 not in examples[0]
    assert "nothing" in examples[1]


@pytest.mark.parametrize("reason", Reason)
def test_every_rejection_is_explained(make_attempt, reason):
    page = benchmark_page("t", Run(EMPTY_RUN.header, (make_attempt("x", text="", rejection=reason.value),)), [])
    [examples] = [block for section in page.sections for block in section.blocks if block.kind == "examples"]
    assert examples.meaning


def test_a_run_without_attempts_has_a_page():
    tree = Tree(benchmark_page("nothing", EMPTY_RUN, []).html())
    assert "No request was answered." in tree.texts("body")[0]
    assert tree.texts("h2") == ["Misses", "Machine and options"]


def record(outcome="shown", endpoint="/infill", **facts):
    tokens = {"prompt_tokens": 100, "reused_tokens": 90, "output_tokens": 10, "canvas_tokens": 32, "steps": 4}
    times = {"generation_seconds": 0.04, "total_seconds": 0.05, "visible_speed": 250.0, "model": "dg-mini"}
    costs = {**tokens, **times, **facts}
    return AuditRecord("2026-01-02T03:04:05.678+00:00", "id", endpoint, outcome=outcome, **costs)


def test_the_page_of_an_audit_log_has_outcomes_times_and_tokens():
    records = [record()] * 3 + [
        record("nothing", reason="empty"),
        record("cancelled", total_seconds=99.0),
        record("failed", total_seconds=0.0, generation_seconds=0.0),
        *[record(is_cached=True, total_seconds=0.002, generation_seconds=0.0)] * 3,
        record("failed", "/v1/completions", reason="RemoteError"),
    ]
    page = audit_page(records, "a log", num_bad=2)
    measures, reasons = page.sections[0].blocks
    assert list(measures.columns) == ["measure", "/infill", "/v1/completions"]
    found = {row[0]: row[1].replace("\N{NO-BREAK SPACE}", " ") for rows in measures.groups.values() for row in rows}
    want = {"requests": "9", "shown": "66.7 %", "nothing worth showing": "11.1 %", "failed": "11.1 %"}
    want |= {"latency": "50 ms", "latency, 90th percentile": "50 ms", "generation": "40 ms", "prompt": "100.0"}
    want |= {"prompt from the cache": "90.0 %", "output speed": "250 tokens/s"}
    assert {name: found[name] for name in want} == want
    assert list(reasons.groups[""]) == [("empty", "1", "–"), ("RemoteError", "–", "1")]
    assert page.lead.replace("\N{NO-BREAK SPACE}", " ").startswith("60 % of 10 requests")
    html = page.html()
    assert "lines that are not records" in html and "2026-01-02" in html


def outcome(verdict="useful", **changes):
    facts = {"time": "2026-01-02T03:04:05.678+00:00", "request": "id", "model": "m", "trigger": "typed"}
    return Outcome(**{**facts, "verdict": verdict, "answer_ms": 80.0, **changes})


def test_the_report_of_an_audit_log_has_the_useful_edits_of_editors(tmp_path):
    log = tmp_path / "a.jsonl"
    shown = {"num_items": 1, "accepted": "whole", "accepted_chars": 10, "kept_chars": 8}
    outcomes = [outcome(**shown), outcome(is_rest=True, num_items=1), outcome("quiet", is_line_finished=True)]
    outcomes += [outcome("cancelled", answer_ms=None), outcome("wrong", trigger="invoked", num_items=3)]
    log.write_bytes(b"".join(one.line() for one in (record(), *outcomes)))
    assert run(["report", str(log)]) == 0
    html = (tmp_path / "a.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "Completions in editors" in html and "docs/ttfue.md" in html
    cells = re.findall(r"<t[hd][^>]*>([^<]*)", html)
    rows = {cells[i]: cells[i + 1 : i + 3] for i in range(len(cells))}
    assert rows["useful edits"] == ["1", "0"]
    assert (rows["useful by 100 ms"], rows["TTFUE, median"]) == (["50.0 %", "0.0 %"], ["80 ms", "–"])
    assert (rows["miss rate"][0], rows["still there after 30 s"][0], rows["right"][0]) == ("50.0 %", "80.0 %", "75.0 %")


@pytest.mark.parametrize("records", [[], [record("cancelled")], [record(steps=0, generation_seconds=0.0)]])
def test_an_audit_log_with_few_records_has_a_page(records):
    assert audit_page(records, "a log").html().startswith("<!doctype html>")


def test_the_report_command_writes_the_page_beside_the_log(tmp_path, capsys):
    log = tmp_path / "a.jsonl"
    log.write_bytes(record().line())
    assert run(["report", str(log)]) == 0
    assert "1 request:" in capsys.readouterr().out
    assert "dg-mini" in (tmp_path / "a.html").read_text()
    assert run(["report", str(log), "-o", str(tmp_path / "b.html")]) == 0
    assert (tmp_path / "b.html").exists()
    (tmp_path / "empty.jsonl").touch()
    for wrong in (tmp_path / "no.jsonl", tmp_path / "empty.jsonl"):
        assert run(["report", str(wrong)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
