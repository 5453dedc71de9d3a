from dataclasses import replace
from unittest.mock import Mock

import pytest
from chatty import chatty
from scripted import MASK_SPEC, ScriptedDenoiser, engine_for

from dg_lsp.context.document import Snapshot
from dg_lsp.context.window import Snippet, Snippets, SnippetSource
from dg_lsp.engine.engine import drain
from dg_lsp.engine.request import RewriteRequest
from dg_lsp.engine.rewrite import checked_request, instruction_note
from dg_lsp.errors import RequestError
from dg_lsp.postprocess.validate import Reason
from dg_lsp.settings import SamplerOptions

SOURCE = "def f(a):\n    total = a + 1\n    return total\n"
LINE = (SOURCE.index("    total"), SOURCE.index("    return"))


def request(where=LINE, **options):
    return RewriteRequest(Snapshot("file:///a.py", SOURCE), *where, **options)


def engine_of(fill, **settings):
    return engine_for(ScriptedDenoiser(fill), **settings)


def rewritten(engine, wanted):
    return drain(engine.rewrite(wanted, deadline=float("inf")))


def applied(result):
    return SOURCE[: result.start] + result.text + SOURCE[result.end :]


FOLLOWING = replace(MASK_SPEC, template="gemma4")
CAUSAL_SPEC = replace(MASK_SPEC, sampling=None, canvas_lengths=())
TWICE = "    return 2 * x\n"
BELOW = "\n\ndef twice(x):\n    return f(x) + f(x)\n"
LONG = " + ".join(map(str, range(40)))  # more than the longest fill, and less than the longest rewrite
ASSIGNMENTS = "".join(f"x{number} = {number}\n" for number in range(200))


@pytest.mark.parametrize(
    ("answer", "text", "reason"),
    [
        pytest.param(f"```python\n{TWICE}```\nDone.", TWICE, None, id="one line"),
        pytest.param(f"```python\n{TWICE}{BELOW}" + "x\n" * 99, TWICE, None, id="goes on with the file"),
        pytest.param(f"```python\n    return {LONG} + {LONG}", "", Reason.UNFINISHED, id="more than the longest"),
        pytest.param("```python\n    return x\n```", "", Reason.UNCHANGED, id="unchanged"),
        pytest.param(f"```python\n    return {LONG}\n```", f"    return {LONG}\n", None, id="a long line"),
    ],
)
@pytest.mark.parametrize("above", ["", ASSIGNMENTS], ids=["short file", "long file"])
def test_model_without_a_canvas_rewrites_by_instruction(monkeypatch, above, answer, text, reason):
    monkeypatch.setattr("dg_lsp.engine.rewrite.SPARE", 200)
    code = f"{above}def f(x):\n    return x\n{BELOW}"
    start = code.index("    return")
    wanted = RewriteRequest(Snapshot("file:///a.py", code), start, start + 13, "Return twice as much.")
    engine = engine_for(chatty(answer, CAUSAL_SPEC, context_length=8192), min_confidence=1.0)
    result = rewritten(engine, wanted)
    assert (result.text, result.reason) == (text, reason)


def test_a_fill_that_was_cut_replaces_no_longer_selection():
    selected = "".join(f"    x{number} = a + {number}\n" for number in range(60))
    code = f"def f(a):\n{selected}    return x1\n"
    wanted = RewriteRequest(Snapshot("file:///a.py", code), len("def f(a):\n"), code.index("    return"))
    result = rewritten(engine_of(selected.replace("+", "*").strip()), wanted)
    assert (result.text, result.reason) == ("", Reason.UNFINISHED)


def test_tokens_that_are_kept_stay_where_they_are():
    # the script writes `total = a * 2` wherever there is a mask
    result = rewritten(engine_of("total = a * 2"), request(strength=0.5, seed=3))
    new = applied(result).split("\n")[1].strip()
    assert len(new) == len("total = a + 1")
    assert all(char in pair for char, pair in zip(new, zip("total = a + 1", "total = a * 2", strict=True), strict=True))
    assert new != "total = a + 1"


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"sampling": replace(MASK_SPEC.sampling, block_length=8), "has_causal_head": False}, id="blocks"),
        pytest.param({"is_drafter": True}, id="canvases that only draft"),
    ],
)
def test_an_instruction_is_followed_by_models_whose_canvas_is_not_free(options):
    model = chatty("```python\n    total = a * 2\n```", replace(MASK_SPEC, canvas_lengths=(8,), **options))
    assert applied(rewritten(engine_for(model), request(instruction="double"))) == SOURCE.replace("a + 1", "a * 2")


@pytest.mark.parametrize(("options", "length"), [({}, 64), ({"canvas_length": 32}, 32)], ids=["auto", "requested"])
def test_the_canvas_of_an_instruction_has_the_requested_length(options, length):
    model = chatty("x")
    model.predict = Mock(wraps=model.predict)
    rewritten(engine_for(model), request(instruction="double", sampler=SamplerOptions(**options)))
    assert len(model.predict.call_args[0][1][0]) == length


@pytest.mark.parametrize(
    ("fill", "options", "least", "reason"),
    [
        pytest.param("total = a + 1", {"strength": 0.3}, 0.0, Reason.UNCHANGED, id="unchanged"),
        pytest.param("total = a * 2", {"strength": 0.5, "seed": 3}, 0.999, Reason.LOW_CONFIDENCE, id="a part is kept"),
        pytest.param("total = a * 2", {}, 0.999, Reason.LOW_CONFIDENCE, id="from nothing"),
    ],
)
def test_an_unchanged_or_unlikely_text_is_rejected_after_some_tries(fill, options, least, reason):
    result = rewritten(engine_of(fill, min_confidence=least), request(**options))
    assert (result.text, result.verdict.confidence, result.reason) == ("", 0.0, reason)
    assert result.steps >= 4


def test_model_without_a_template_gets_the_instruction_as_a_comment_after_the_snippets():
    snippets = Snippets((Snippet(SnippetSource.OPEN_FILES, "tools.py", "def clean(text): ..."),))
    seen = []

    def fill(prefix, _suffix):
        seen.append(prefix)
        return "total = 3"

    result = rewritten(engine_of(fill), request(instruction="make it\nthree", snippets=snippets))
    assert "def clean(text): ..." in seen[-1].split("    # make it three\n    ")[0]
    assert applied(result) == SOURCE.replace("a + 1", "3")


def test_the_note_on_an_ignored_instruction_reports_that_a_file_without_comments_receives_none():
    wanted = RewriteRequest(Snapshot("file:///a", "[1]\n", "json"), 0, 3, "double it")
    assert "receives none" in instruction_note(wanted, MASK_SPEC)


def test_a_selection_longer_than_a_canvas_is_not_renoised():
    text = "a = 10001\n" * 10
    wanted = RewriteRequest(Snapshot("file:///a.py", text), 0, len(text), strength=0.1)
    with pytest.raises(RequestError, match="select less, or use strength 1"):
        rewritten(engine_of("b"), wanted)


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_unfinished_rewrite_is_rejected_at_the_deadline(strength):
    result = drain(engine_of("total = 2 * a").rewrite(request(strength=strength), deadline=0.0))
    assert result.reason is Reason.UNFINISHED


CELL = Snapshot("file:///a.ipynb#1", "a\n\nb c\n\nd", num_before=3, num_after=3)


@pytest.mark.parametrize(
    ("text", "where", "instructed", "plain"),
    [
        ("a\nbc\nd", (3, 4), "bc\n", "c"),
        ("a\nbc\nd", (2, 5), "bc\n", "bc"),
        ("a\r\nb\r\nc", (3, 4), "b\r\n", "b"),
        ("ab", (1, 2), "ab", "b"),
        ("a\n  b c \n\nd", (1, 9), "a\n  b c \n", "b c"),
        pytest.param(CELL, (5, 6), "b c", "c", id="a cell of a notebook"),
    ],
)
def test_range_grows_to_whole_lines_for_an_instruction_and_else_loses_its_blanks(text, where, instructed, plain):
    snapshot = text if text is CELL else Snapshot("file:///a.py", text)
    for spec, expected in ((FOLLOWING, instructed), (MASK_SPEC, plain)):
        checked = checked_request(RewriteRequest(snapshot, *where, "double it"), spec)
        assert (snapshot.text[checked.start : checked.end], checked.is_instructed) == (expected, spec is FOLLOWING)


def test_a_range_that_leaves_its_cell_is_refused():
    with pytest.raises(RequestError, match="select some code"):
        checked_request(RewriteRequest(CELL, 5, 9), MASK_SPEC)


@pytest.mark.parametrize(
    ("fill", "strength"),
    [
        pytest.param(("x = 2", "x = 3", "x = 2", "= ="), 1.0, id="canvases of one pass"),
        pytest.param("total = b * 2", 0.5, id="tries that keep other tokens"),
    ],
)
def test_several_candidates_differ_and_the_most_confident_one_is_first(fill, strength):
    result = rewritten(engine_of(fill, min_confidence=0.99), request(strength=strength, num_candidates=8))
    found = [result, *result.alternatives]
    assert len({option.text for option in found}) == len(found) >= 2
    assert [option.verdict.confidence for option in found] == sorted(
        (option.verdict.confidence for option in found), reverse=True
    )
    assert {option.start for option in found} == {result.start}


def test_the_output_of_a_test_is_an_instruction_to_fix_it_unless_there_is_another_one():
    failure = Snippets((Snippet(SnippetSource.TEST, "output of make", "1 is not 2"),))
    for options, instruction in (
        ({"snippets": failure}, "change it so that the test passes whose output is shown above."),
        ({"snippets": failure, "instruction": " double it "}, "double it"),
        ({}, ""),
    ):
        checked = checked_request(request(**options), FOLLOWING)
        assert (checked.instruction, checked.is_instructed) == (instruction, bool(instruction))
