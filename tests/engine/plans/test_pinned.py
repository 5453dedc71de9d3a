"""Holes between frozen text, raced over their lengths."""

import time
from dataclasses import replace

import numpy as np
import pytest

from dg_lsp.backends.scripted import END_ID, MASK_ID, MASK_SPEC, UNIFORM_SPEC, ByteTokenizer
from dg_lsp.canvas.infill import MIN_SUFFIX, PREFIX_TAIL, RACED_TOKENS
from dg_lsp.canvas.spec import PromptFormat
from dg_lsp.diffusion.step import Step
from dg_lsp.engine.decoders.base import gap_of
from dg_lsp.engine.decoders.infill import JOIN_TOKENS
from dg_lsp.engine.request import DecoderName
from dg_lsp.errors import RequestError
from dg_lsp.postprocess.validate import Reason
from dg_lsp.settings import FillSettings

MASKS = replace(MASK_SPEC, fim=None, prompt_format=PromptFormat.PINNED, gap_lengths=(4, 8, 16))
NOISE = replace(UNIFORM_SPEC, fim=None, prompt_format=PromptFormat.PINNED, gap_lengths=(4, 8, 16))
BEFORE, AFTER = "def area(side):\n    result = ", "\n    print('the area of the square')\n    return result\n"
UNCHECKED = FillSettings(deadline_ms=60_000, early_stop_ms=0, check_syntax=False)


def place(fill):
    """The text, and the same with a `|` for the fill."""
    return BEFORE + fill + AFTER, BEFORE + "|" + AFTER


@pytest.mark.parametrize("spec", [MASKS, NOISE], ids=["masks", "uniform noise"])
@pytest.mark.parametrize("fill", ["side", "side * 2", "side.area(1, 2.)"])
def test_the_length_that_joins_wins(reciting, ask, spec, fill):
    text, asked = place(fill)
    engine, _ = reciting(text, spec)
    result = engine.fill(ask(asked))
    assert result.text == fill
    assert result.plan is DecoderName.CANVAS
    assert result.candidates[0].score > np.log(0.99) * 2.1


@pytest.mark.parametrize("spec", [MASKS, NOISE], ids=["masks", "uniform noise"])
def test_what_the_buffer_says_stands_frozen_in_every_pass(reciting, ask, spec):
    text, asked = place("side * 2")
    engine, denoiser = reciting(text, spec)
    engine.fill(ask(asked))
    encode = ByteTokenizer().encode
    head, tail = encode(BEFORE[-PREFIX_TAIL:]).tolist(), encode(AFTER).tolist()
    *passes, joins = denoiser.raced
    assert passes
    for canvases in passes:
        assert len({len(canvas) for canvas in canvases}) == 1
        assert all(canvas[:PREFIX_TAIL] == head for canvas in canvases)
    for hole, canvas in zip((4, 8, 16), passes[0], strict=True):
        assert canvas[PREFIX_TAIL + hole :] == tail[: len(canvas) - PREFIX_TAIL - hole]
    for hole, canvas in zip((4, 8, 16), joins, strict=True):
        after = canvas[PREFIX_TAIL + hole :]
        assert after[JOIN_TOKENS:] == tail[JOIN_TOKENS : len(after)]
        assert after[:JOIN_TOKENS] != tail[:JOIN_TOKENS]


def test_all_lengths_share_each_pass_and_the_join_has_lanes_of_its_own(reciting, ask, frames_of):
    text, asked = place("side * 2")
    engine, denoiser = reciting(text, MASKS)
    frames, result = frames_of(engine, ask(asked))
    assert [lanes for kind, _, lanes in denoiser.calls if kind == "predict"] == [(0, 1, 2), (3, 4, 5)]
    assert len(frames) == result.steps == len(denoiser.raced) == 2
    assert frames[-1].settled_text == "side * 2"
    assert "".join(cell.text for cell in frames[-1].cells).startswith("side * 2")
    assert result.canvas_length == 32  # eight, sixteen and eight


def test_one_pass_never_has_more_than_any_runtime_takes(reciting, ask):
    text, asked = place("side")
    spec = replace(MASKS, canvas_lengths=(64, 128), gap_lengths=(4, 8, 16, 32))
    engine, denoiser = reciting(text + "# more\n" * 40, spec, replace_canvas(128))
    assert engine.fill(ask(asked + "# more\n" * 40)).text == "side"
    assert all(sum(map(len, canvases)) <= RACED_TOKENS for canvases in denoiser.raced)


def replace_canvas(length):
    return FillSettings(deadline_ms=60_000, early_stop_ms=0, canvas_length=length)


def test_while_the_longest_hole_wins_a_longer_one_is_tried(reciting, ask):
    fill = "compute(side, side + 1, 'a', 2)."[:32]
    text, asked = place(fill)
    engine, denoiser = reciting(text, MASKS, UNCHECKED)
    result = engine.fill(ask(asked))
    assert result.text == fill
    holes = [[canvas.count(MASK_ID) for canvas in canvases] for canvases in denoiser.raced]
    assert [max(counts) for counts in holes if max(counts) > JOIN_TOKENS] == [16, 32, 48]  # 64 less what is frozen
    kinds = [kind for kind, _, _ in denoiser.calls]
    assert kinds == ["prefill", "predict", "predict"] * 3  # nothing is kept of the canvases before


def test_a_model_that_makes_room_itself_is_given_none(reciting, ask):
    fill = "compute(side, side + 1, 'a', 2)."[:32]
    text, asked = place(fill)
    sampling = replace(MASKS.sampling, expand_id=7)
    engine, denoiser = reciting(text, replace(MASKS, sampling=sampling), UNCHECKED)
    engine.fill(ask(asked))
    assert len(denoiser.raced) == 2


def test_where_one_line_is_shown_its_end_ends_the_fill_and_the_join_is_asked_there(reciting, ask):
    engine, denoiser = reciting("a = 12345\nb = 123456789\nc = 1234567890\n", MASKS)
    assert engine.fill(ask("a = |\nb = 0\nz = 1\nz = 2\n")).text == "12345"
    assert len(denoiser.raced) == 2
    encode = ByteTokenizer().encode
    _, middle, longest = denoiser.raced[-1]
    assert middle[:8] == longest[:8] == encode(" = 12345").tolist()
    assert middle[8 + JOIN_TOKENS :] == encode(" 0\nz = 1\nz = 2\n").tolist()[: len(middle) - 8 - JOIN_TOKENS]


def test_an_end_token_in_the_hole_ends_the_fill_and_the_join_is_asked_without_the_rest(reciting, ask):
    asked = "a = |\nz = 0\nz = 1\nz = 2\n"
    engine, denoiser = reciting("a = 1", replace(MASKS, gap_lengths=(4,)))
    result = engine.fill(ask(asked))
    assert result.text == "1"
    [canvas] = denoiser.raced[-1]
    head = ByteTokenizer().encode(" = ").tolist()
    assert canvas[:4] == [*head, *ByteTokenizer().encode("1").tolist()]
    assert END_ID not in canvas
    assert len(denoiser.raced) == 2


def test_without_anything_after_the_cursor_there_is_one_hole_and_nothing_to_join(reciting, ask):
    engine, denoiser = reciting("a = 1", MASKS)
    assert engine.fill(ask("a = |")).text == "1"
    assert [len(canvases) for canvases in denoiser.raced] == [1]


def test_a_line_that_is_complete_gets_nothing(reciting, ask):
    engine, _ = reciting("a = 1\nb = 22222222222222\nc = 333333333333333333\n", MASKS)
    result = engine.fill(ask("a = 1|\nb = 22222222222222\nc = 333333333333333333\n"))
    assert result.text == ""
    assert {rejection.reason for rejection in result.rejections} == {Reason.EMPTY}


def test_every_hole_is_a_candidate(reciting, ask):
    text, asked = place("side * 2")
    engine, _ = reciting(text, MASKS)
    result = engine.fill(ask(asked, num_candidates=3))
    assert result.candidates[0].text == "side * 2"
    assert {candidate.text for candidate in result.candidates} >= {"side", "side * 2"}
    assert result.plan is DecoderName.RACE


def test_typing_decodes_one_token(reciting, ask):
    text, _ = place("side * 2")
    engine, _ = reciting(text, MASKS)
    engine.fill(ask(f"{BEFORE}|{AFTER}"))
    result = engine.fill(ask(f"{BEFORE}s|{AFTER}"))
    assert result.prompt_tokens - result.cached_tokens == 1


def test_a_passed_deadline_asks_the_model_nothing(reciting, ask):
    text, asked = place("side")
    engine, denoiser = reciting(text, MASKS)
    result = engine.fill(ask(asked), deadline=time.monotonic() - 1)
    assert denoiser.raced == []
    assert {rejection.reason for rejection in result.rejections} == {Reason.UNFINISHED}


def test_who_stops_asking_stops_the_model(reciting, ask):
    text, asked = place("side")
    engine, denoiser = reciting(text, MASKS, confidence=0.5)  # one token a step
    steps = engine.run(ask(asked))
    next(steps)
    steps.close()
    assert len(denoiser.raced) == 1


@pytest.mark.parametrize("plan", [DecoderName.CAUSAL, DecoderName.LOOKUP, DecoderName.DRAFT_VERIFY])
def test_no_causal_pass_sees_what_stands_frozen_after_the_hole(reciting, ask, plan):
    text, asked = place("side")
    engine, _ = reciting(text, MASKS)
    with pytest.raises(RequestError, match="in the format pinned"):
        engine.fill(ask(asked, plan=plan))


def test_a_canvas_without_room_is_refused(reciting, ask):
    text, asked = place("side")
    engine, _ = reciting(text, MASKS, replace_canvas(PREFIX_TAIL + MIN_SUFFIX))
    with pytest.raises(RequestError, match="choose at least 20"):
        engine.fill(ask(asked))


def step_of(frozen):
    flags = np.array(list(map(int, frozen)), bool)
    ids = np.arange(len(flags), dtype=np.int32)
    return Step(1, ids, ids, flags, flags, flags.astype(np.float32))


@pytest.mark.parametrize(
    ("frozen", "hole"),
    [("1100111", [2, 3]), ("110000111", [2, 3, 4, 5]), ("11111", []), ("0011", [0, 1]), ("000", [0, 1, 2])],
    ids=["between", "grown", "gone", "no head", "open"],
)
def test_a_hole_is_what_is_not_frozen_however_long_it_has_become(frozen, hole):
    assert gap_of(step_of(frozen)).canvas_ids.tolist() == hole
