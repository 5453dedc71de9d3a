import re
from html import unescape

import pytest

from dg_lsp.bench.report.facts import facts
from dg_lsp.bench.report.headline import by_decoder, by_kind, headline, lead
from dg_lsp.bench.report.markup import Html, element, escape, join
from dg_lsp.bench.report.measures import GROUPS, definitions
from dg_lsp.bench.report.misses import LATE, NOTHING, NUM_EXAMPLES, WRONG, excerpt, misses, outcome
from dg_lsp.metrics.attempt import Shown
from dg_lsp.metrics.summary import summarize
from dg_lsp.postprocess.validate import Reason


def plain(html):
    text = unescape(re.sub("<[^>]+>", " ", html))
    return " ".join(text.replace("\N{NO-BREAK SPACE}", " ").split())


def rows(html):
    return [[plain(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in html.split("<tr")[1:]]


def test_text_is_escaped_and_markup_is_not():
    assert element("p", "<b>", element("i", "&"), class_="x", aria_label='"', hidden=True, title=None) == (
        '<p class="x" aria-label="&quot;" hidden>&lt;b&gt;<i>&amp;</i></p>'
    )
    assert join(["<", Html("<br>")], ", ") == "&lt;, <br>"
    assert isinstance(escape("x"), Html)
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'
    assert element("path", d="M0 0", width=1.2345) == '<path d="M0 0" width="1.23"></path>'


def test_line_ends_are_kept_and_control_characters_seen():
    assert escape("a\r\nb\tc\rd\x00") == "a\nb\tc␍d␀"
    assert escape("\ud800\u202e") == "\N{REPLACEMENT CHARACTER}" * 2


def test_the_table_holds_the_numbers_of_the_summary(make_attempt):
    attempts = {
        "diffusion": [make_attempt(str(i)) for i in range(3)] + [make_attempt("x", shown=(), is_exact=False)],
        "autoregressive": [make_attempt(str(i), latency_ms=500.0, shown=(Shown(500.0, "return a"),)) for i in range(4)],
    }
    found = {row[0]: row[1:] for row in rows(headline(attempts))}
    assert found["measure"] == ["diffusion", "autoregressive"]
    assert found["requests"] == ["4", "4"]
    assert found["useful by 50 ms"] == ["75.0 % 30–95", "0.0 % 0–49"]
    assert found["useful by 500 ms"] == ["75.0 % 30–95", "100.0 % 51–100"]
    assert found["TTFUE, median"] == ["40 ms", "500 ms"]
    assert found["missed"] == ["25.0 % 5–70", "0.0 % 0–49"]
    assert found["steps, mean"] == ["4.00", "4.00"]
    assert "pass@1" not in found, "no tests were run"


def test_what_only_one_way_has_is_shown(make_attempt):
    found = {
        row[0]: row[1:] for row in rows(headline({"a": [make_attempt("x", passes=True)], "b": [make_attempt("x")]}))
    }
    assert found["pass@1"] == ["100.0 %", "–"]


def test_every_number_of_a_summary_has_its_row_and_its_definition(make_attempt):
    listed = [measure for measures in GROUPS.values() for measure in measures]
    assert len({measure.name for measure in listed}) == len(listed)
    summary = summarize([make_attempt("x", passes=True)])
    num_numbers = len(summary.json()) - len(("ttfue_ms", "latency_ms", "useful_by")) + 2 * 2 + len(summary.useful_by)
    assert len(listed) == num_numbers
    told = plain(definitions())
    assert all(f"{measure.name} {measure.definition}" in told for measure in listed)


def test_the_first_sentence_holds_both_sides(make_attempt):
    attempts = {
        "diffusion": [make_attempt("x")],
        "llama-server": [make_attempt("x")],
        "autoregressive": [make_attempt("x", shown=())],
    }
    assert plain(lead(attempts, "autoregressive")) == (
        "100 % of 1 request had a useful edit within 250 ms by diffusion, 0 % by autoregressive."
    )
    assert "100 % by llama-server" in plain(lead(attempts, "no such way"))
    assert plain(lead({"diffusion": [make_attempt("x")]}, "autoregressive")).endswith("within 250 ms.")


def test_kinds_and_plans_are_split_only_where_there_are_several(make_attempt):
    attempts = {
        "auto": [
            make_attempt("a"),
            make_attempt("b", kind="block", decoder="autoregressive", shown=(), is_exact=False),
        ],
        "autoregressive": [make_attempt("a", decoder="autoregressive")],
    }
    found = rows(by_kind(attempts))
    assert [row[0] for row in found] == ["way", "block", "auto", "autoregressive", "line-end", "auto", "autoregressive"]
    assert found[2][1:3] == ["1", "0.0 %"]
    assert found[3][1:3] == ["0", "–"]
    # only one way ran several decoders
    assert [row[0] for row in rows(by_decoder(attempts))] == ["decoder", "autoregressive", "diffusion"]
    assert by_kind({"autoregressive": attempts["autoregressive"]}) == ""
    assert by_decoder({"autoregressive": attempts["autoregressive"]}) == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({}, None, id="useful in time"),
        pytest.param({"shown": (Shown(1000.5, "return a"),)}, LATE, id="useful, but late"),
        pytest.param({"shown": (Shown(10, "return a"), Shown(20, "b"))}, None, id="an early draft was useful"),
        pytest.param({"shown": (Shown(10, "b"),)}, WRONG, id="wrong"),
        pytest.param({"shown": (Shown(10, "b"),), "passes": True}, None, id="another text that passes"),
        pytest.param({"shown": (), "rejection": "syntax-error"}, "syntax-error", id="rejected"),
        pytest.param({"shown": ()}, NOTHING, id="nothing at all"),
    ],
)
def test_why_a_request_was_of_no_use(make_attempt, changes, reason):
    assert outcome(make_attempt("x", **changes)) == reason


def test_reasons_are_counted_the_most_frequent_first(make_attempt):
    wrong = [make_attempt(f"w{i}", shown=(Shown(9, f"bad {i}"),), is_exact=False) for i in range(8)]
    attempts = {"a": [*wrong, make_attempt("ok")], "b": [make_attempt("e", shown=(), rejection="empty")]}
    html = misses(attempts)
    assert rows(html.split("</table>")[0]) == [
        ["reason", "a", "b"],
        ["wrong", "8 88.9 %", "–"],
        ["empty", "–", "1 100.0 %"],
    ]
    assert "wrong: 5 examples of 8" in html
    assert html.count("bad ") == NUM_EXAMPLES
    assert ">nothing<" in html


def test_nothing_missed_is_said(make_attempt):
    assert plain(misses({"a": [make_attempt("x")]})) == "Every request had a useful edit in time."


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_explained(make_attempt, reason):
    html = misses({"a": [make_attempt("x", shown=(), rejection=reason.value)]})
    assert 'class="hint"' in html.split("</summary>")[1].split('class="example"')[0]


def test_examples_are_cut():
    assert excerpt("a\n" * 30).count("\n") == 10
    assert excerpt("x" * 1000) == "x" * 200 + "…"
    assert excerpt("a\r\nb") == "a\nb"


def test_facts_are_flat_and_readable():
    html = facts(
        {"cpu": "<x>", "versions": {"python": "3", "cuda": None}, "flag": True, "lengths": [1, 2.5], "data": {}}
    )
    assert re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", html) == [
        ("cpu", "&lt;x&gt;"),
        ("versions.python", "3"),
        ("flag", "yes"),
        ("lengths", "1, 2.5"),
    ]
    assert facts({}) == "<p>None.</p>"
