"""Answers to conversations, by models that recite one."""

import math
from dataclasses import replace

import pytest
from chatty import chatty
from scripted import MASK_SPEC, engine_for

from dg_lsp.canvas.chat import Role, Turn
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.engine import drain
from dg_lsp.engine.request import ChatRequest, RewriteRequest
from dg_lsp.postprocess.validate import Reason

CAUSAL_SPEC = replace(MASK_SPEC, sampling=None, canvas_lengths=())
SOURCE = "def f(x):\n    return x\n\n\ndef twice(x):\n    return f(x) + f(x)\n"
RETURN = "    return 2 * x\n"
LONG = " + ".join(map(str, range(99)))


@pytest.mark.parametrize(
    ("answer", "text", "reason"),
    [
        pytest.param(f"```python\n{RETURN}```\nDone.", RETURN, None, id="one line"),
        pytest.param(f"```python\n{RETURN}\n\n{SOURCE[24:]}" + "x\n" * 99, RETURN, None, id="goes on with the file"),
        pytest.param(f"```python\n    return {LONG}", "", Reason.UNFINISHED, id="longer than the longest answer"),
        pytest.param("```python\n    return x\n```", "", Reason.UNCHANGED, id="unchanged"),
    ],
)
def test_model_without_a_canvas_rewrites_by_instruction(answer, text, reason):
    recited = chatty(answer, CAUSAL_SPEC)
    engine = engine_for(recited, min_confidence=1.0)
    request = RewriteRequest(Snapshot("file:///a.py", SOURCE), 10, 23, "Return twice as much.")
    result = drain(engine.rewrite(request, deadline=math.inf))
    assert (result.text, result.reason) == (text, reason)
    assert result.follows_instructions


def test_next_turn_decodes_only_what_is_new():
    denoiser = chatty("ok")
    engine = engine_for(denoiser)
    first = (Turn(Role.USER, "x" * 100),)
    drain(engine.chat(ChatRequest(first, "name"), deadline=math.inf))
    before = denoiser.num_prefilled
    turns = (*first, Turn(Role.ASSISTANT, "ok"), Turn(Role.USER, "more"))
    result = drain(engine.chat(ChatRequest(turns, "name"), deadline=math.inf))
    assert result.cached_tokens > 100
    assert denoiser.num_prefilled - before == result.prompt_tokens - result.cached_tokens
