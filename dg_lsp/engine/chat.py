"""Answers to conversations, and continuations of texts: as many canvases or tokens as they take, without judgement."""

from collections.abc import Generator
from dataclasses import replace

from dg_lsp.canvas.chat import chat_layout, raw_layout, split_thought
from dg_lsp.canvas.spec import DecoderName, ModelSpec
from dg_lsp.engine.decode_run import DecodeRun, EngineModel, Stopwatch
from dg_lsp.engine.decoders.base import Progress, mapped
from dg_lsp.engine.request import ChatRequest
from dg_lsp.engine.result import FillResult
from dg_lsp.engine.stop_criteria import Limits
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection


def answer(
    model: EngineModel, request: ChatRequest, deadline: float, decoder: DecoderName
) -> Generator[Progress, None, FillResult]:
    """See `Engine.chat`; `decoder` is any but `auto`."""
    watch, is_raw = Stopwatch(), request.text is not None
    with watch.stage("prompt"):
        if request.ignores_end:
            model = replace(model, spec=replace(model.spec, end_ids=()))
        # what one slot takes, which may be more than the prompt of a fill
        size = model.denoiser.footprint.context_size
        max_length = max(0, size - model.spec.longest_block)
        if request.text is None:
            layout = chat_layout(request.turns, model.tokenizer, model.spec, max_length)
        else:
            layout = raw_layout(request.text, model.tokenizer, model.spec, max_length)
        limits = Limits(
            _canvas_length(model.spec, request.max_tokens) if decoder.needs_canvas else 0,
            request.max_tokens,
            None,
            deadline=deadline,
            is_raw=is_raw or request.ignores_end,
            stops=request.stops,
            is_stopped=request.is_stopped,
            max_length=max_length,
        )
        run = DecodeRun(model, decoder, layout, limits, watch, seed=request.seed, slot=request.slot)
    is_thinking = model.spec.is_thinking
    (draft, *_) = yield from mapped(
        run.drafts(),
        lambda progress: progress if is_raw else replace(progress, is_answer=True, is_thinking=is_thinking),
    )
    if draft.is_empty:
        return run.result(draft, (), (Rejection(Reason.UNFINISHED),))
    thought, num_tokens = "", request.max_tokens
    if len(draft.ids) > num_tokens:  # an end token after the cut is not the end of the answer
        draft = replace(draft, ids=draft.ids[:num_tokens], confidence=draft.confidence[:num_tokens], is_ended=False)
    if is_raw:
        text = model.decode(draft.ids).decode("utf-8", "replace")
    else:
        thought, text = split_thought(draft.ids, model.tokenizer, is_thinking=is_thinking)
    result = run.result(draft, (Candidate(text, draft.score),), ())
    return replace(result, thought=thought, output_tokens=min(result.output_tokens, num_tokens))


def _canvas_length(spec: ModelSpec, max_tokens: int) -> int:
    """The shortest canvas that holds the longest answer, or the longest canvas."""
    lengths = spec.canvas_lengths if spec.sampling else ()
    shortest = min((length for length in lengths if length >= max_tokens), default=max(lengths, default=0))
    return spec.canvas_length or shortest
