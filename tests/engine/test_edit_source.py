"""Next edits of an edit model, end to end over a model without weights."""

import asyncio
import math
from dataclasses import replace

import pytest
from chatty import chatty
from scripted import MASK_SPEC, MIDDLE_ID, UNIFORM_SPEC, ScriptedDenoiser, engine_for

from dg_lsp.context.document import LineIndex, Snapshot
from dg_lsp.context.edit_history import Edit
from dg_lsp.engine.edit_source import DISMISSED, NOT_REPEATED, NextEditRequest, NextEditResult, propose
from dg_lsp.engine.engine import drain
from dg_lsp.engine.next_edit import Proposal
from dg_lsp.engine.request import FillResult
from dg_lsp.errors import ModelUnsupportedError
from dg_lsp.postprocess.validate import Reason

SPEC = replace(MASK_SPEC, name="zeta-2-Q8_0", sampling=None, canvas_lengths=())
CODE = "def area(width):\n    return w\n\n\nprint(area(2))\n"
EDIT = Edit(0, "", "def area(w):\n", "def area(width):\n", "    return w\n")
ANSWER = CODE.replace("return w", "return width") + ">>>>>>> UPDATED\n"


def request_of(code=CODE, at="return", edits=(EDIT,), **options):
    snapshot = Snapshot("file:///a.py", code)
    return NextEditRequest(snapshot, LineIndex.of(code), tuple(edits), code.index(at), **options)


def proposed(answer, request=None, spec=SPEC):
    denoiser = ScriptedDenoiser(answer, spec=spec)
    denoiser.tokenizer.special = {"<[fim-middle]>": MIDDLE_ID}.get  # the script begins after it
    return drain((request or request_of()).run(engine_for(denoiser), math.inf)), denoiser


def applied(result, code=CODE):
    for proposal in reversed(result.proposals):
        code = proposal.applied(code)
    return code


def test_several_edits_of_an_answer_are_proposed_in_order():
    code = "width = 1\na = w\nb = 2\nc = w\n"
    answer = "width = 1\na = width\nb = 2\nc = width\n"
    result, _ = proposed(answer, request_of(code, "a =", [Edit(0, "", "w = 1\n", "width = 1\n", "a = w\n")]))
    assert [(code[edit.start : edit.end], edit.text) for edit in result.proposals] == [("", "idth")] * 2
    assert applied(result, code) == answer
    assert (result.model, result.reason) == ("zeta-2-Q8_0", None)


def test_edits_that_are_valid_only_together_are_one():
    code = "value = call(\n    1,\n    2,\n    3,\n    4,\n)\n"
    answer = "value = [\n    1,\n    2,\n    3,\n    4,\n]\n"
    result, _ = proposed(answer, request_of(code, "value", []))
    [proposal] = result.proposals
    assert proposal.applied(code) == answer


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("NO_EDITS\n>>>>>>> UPDATED\n", Reason.UNCHANGED),
        (CODE, Reason.UNCHANGED),
        (CODE.replace("return w", "return (w"), Reason.SYNTAX_ERROR),
        (CODE.replace("return w", "return height"), Reason.UNKNOWN_NAME),
        (CODE.replace("area(width)", "area(w)"), Reason.REVERSAL),
        ("<filename>b.py\nx = 1\n", Reason.UNCHANGED),
        (CODE.replace("return w", "return w\0"), Reason.NOT_TEXT),
        (CODE.replace("return w", "return " + "w + w * " * 9), Reason.REPEATS_ITSELF),
        ("", Reason.UNCHANGED),
    ],
)
def test_an_answer_that_is_not_proposed_has_a_reason(answer, reason):
    result, _ = proposed(answer)
    assert (result.proposals, result.reason) == ((), reason)


EMOJI = CODE + 'print("😀")'
EMOJI_ANSWER = EMOJI.replace("return w", "return width  # 😀\n    # more")
MIXED = CODE.replace("\n\n\n", "\n\r\n\r\n")


@pytest.mark.parametrize(
    ("code", "answer", "edited"),
    [
        pytest.param(EMOJI.replace("\n", "\r\n"), EMOJI_ANSWER, EMOJI_ANSWER.replace("\n", "\r\n"), id="CRLF"),
        pytest.param(EMOJI.replace("\n", "\r"), EMOJI_ANSWER, EMOJI_ANSWER.replace("\n", "\r"), id="CR"),
        pytest.param(MIXED, ANSWER, MIXED.replace("return w\n", "return width\n"), id="mixed"),
        pytest.param("", "x = 1\n", "x = 1", id="an empty file"),
    ],
)
def test_line_ends_and_emoji_stay_as_they_are(code, answer, edited):
    result, _ = proposed(answer, request_of(code, "return" if code else "", [EDIT] if code else []))
    assert applied(result, code) == edited


def test_the_model_stops_once_the_answer_joins_the_unchanged_lines():
    code = "".join(f"x{number} = {number}\n" for number in range(40))
    answer = code.replace("x0 = 0", "x0 = 1")
    result, denoiser = proposed(answer, request_of(code, "x0", []))
    assert applied(result, code) == answer
    assert denoiser.num_steps < len(answer) / 2


def test_an_unlikely_answer_is_not_proposed(monkeypatch):
    monkeypatch.setattr("dg_lsp.engine.edit_source.MIN_PROBABILITY", 0.995)
    assert proposed(ANSWER)[0].reason is Reason.LOW_CONFIDENCE


def test_a_model_of_another_kind_is_refused():
    with pytest.raises(ModelUnsupportedError, match="use an edit model"):
        proposed(ANSWER, spec=MASK_SPEC)


REPEATED = "first = load(a, mode, strict=True)\nsecond = load(a, mode)\n"
REPEATED_EDIT = Edit(0, "", "first = load(a, mode)\n", *REPEATED.splitlines(keepends=True))


def proposed_by(result, *, code=REPEATED, edits=(REPEATED_EDIT,), select=list):
    """The next edits, and the requests to a model that answers with a result."""
    requests = []

    async def ask_model(request):
        requests.append(request)
        return result

    return asyncio.run(propose(request_of(code, "second", edits), ask_model, select)), requests


def test_a_repetition_comes_before_the_edits_of_a_model():
    edits, requests = proposed_by(None)
    assert applied(edits, REPEATED) == REPEATED.replace("mode)", "mode, strict=True)")
    assert requests == []


UNREPEATED = "a = 1\nsecond = 2\nc = 3\n"
PLACES = tuple(Proposal(start, start + 1, "x", 0.9) for start in (0, 17))
UNSTABLE = NextEditResult((), "zeta", reason=Reason.UNFINISHED)
LATE = f"{NOT_REPEATED}; the edit of {{}} was not finished within its time and length"


@pytest.mark.parametrize(
    ("result", "select", "starts", "reason"),
    [
        pytest.param(None, list, [], NOT_REPEATED, id="no model"),
        pytest.param(NextEditResult(PLACES, "zeta"), list, [17, 0], "", id="the next place first"),
        pytest.param(NextEditResult(PLACES, "zeta"), lambda _: [], [], DISMISSED, id="none is wanted"),
        pytest.param(UNSTABLE, list, [], LATE.format("zeta"), id="none"),
        pytest.param(FillResult.unfinished(), list, [], LATE.format("the model"), id="busy until the deadline"),
    ],
)
def test_a_model_proposes_edits_where_none_is_repeated(result, select, starts, reason):
    edit = Edit(1, "", "second = 1\n", "second = 2\n", "")
    edits, [request] = proposed_by(result, code=UNREPEATED, edits=(edit,), select=select)
    assert ([proposal.start for proposal in edits.proposals], edits.reason) == (starts, reason)
    assert request.snapshot.text == UNREPEATED


@pytest.mark.parametrize(
    ("code", "edit", "line_end"),
    [
        pytest.param("a\nbc\nd\n", Edit(1, "", "b\n", "bc\n", ""), 4, id="the edited line"),
        pytest.param("a\nd\n", Edit(1, "", "b\n", "", ""), 3, id="after a deletion"),
        pytest.param("a", Edit(1, "", "b\n", "", ""), 1, id="after a deletion at the end"),
    ],
)
def test_without_a_cursor_the_last_edited_line_ends_there(code, edit, line_end):
    assert NextEditRequest(Snapshot("file:///a.py", code), LineIndex.of(code), (edit,)).cursor == line_end


CALLS = "a = g(1)  # 😀\r\nb = f(2)\r\nx = 0\r\nc = f(3)\r\n"
CALL_EDIT = Edit(0, "", "a = f(1)  # 😀\r\n", "a = g(1)  # 😀\r\n", "b = f(2)\r\n")


@pytest.fixture
def denoised(monkeypatch):
    """`denoised(script)` -> the result of a diffusion model; every place is among what is denoised."""
    monkeypatch.setattr("dg_lsp.engine.edit_source.STRENGTH", 0.99)

    def make(script, *, spec=MASK_SPEC, code=CALLS):
        denoiser = chatty("```python\n" + script.replace("\r", "").rstrip(), spec)  # the fence is frozen in the canvas
        return drain(request_of(code, "b", [CALL_EDIT]).run(engine_for(denoiser), math.inf))

    return make


@pytest.mark.parametrize("spec", [MASK_SPEC, UNIFORM_SPEC], ids=["mask", "uniform"])
def test_diffusion_changes_several_places_on_one_canvas(denoised, spec):
    result = denoised(CALLS.replace("f", "g"), spec=spec)
    assert [(CALLS[edit.start : edit.end], edit.text) for edit in result.proposals] == [("f", "g"), ("f", "g")]
    assert applied(result, CALLS) == CALLS.replace("f", "g")
    assert result.reason is None
    assert all(edit.confidence > 0.9 for edit in result.proposals)


def test_diffusion_takes_as_many_lines_as_fit_into_one_canvas(denoised):
    code = "x = 0\n" * 9 + "b = f(2)\n" + "x = 0\n" * 9
    result = denoised("x = 0\n" * 2 + "b = g(2)\n" + "x = 0\n" * 2, code=code)
    assert applied(result, code) == code.replace("f", "g")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        pytest.param(CALLS, Reason.UNCHANGED, id="a reason of the rewrite"),
        pytest.param(CALLS.replace("g(1)", "f(1)"), Reason.REVERSAL, id="a reason of next edits"),
    ],
)
def test_what_diffusion_does_not_propose_has_a_reason(denoised, script, reason):
    result = denoised(script)
    assert (result.proposals, result.reason) == ((), reason)
