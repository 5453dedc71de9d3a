"""Answers the last turn of a conversation. Nothing of the answer is judged."""

from collections.abc import Generator

from dg_lsp.canvas.chat import chat_layout
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.engine.decoders.base import Progress
from dg_lsp.engine.decoders.run import DecodeRun, EngineModel
from dg_lsp.engine.request import ChatRequest
from dg_lsp.engine.request_denoiser import Stopwatch
from dg_lsp.engine.result import FillResult
from dg_lsp.engine.stop_criteria import Limits
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection


def answer(model: EngineModel, request: ChatRequest, deadline: float) -> Generator[Progress, None, FillResult]:
    """One value per forward pass, then the answer as the only candidate. `deadline` is in `time.monotonic` seconds.

    Raises:
        RequestError: there is no turn to answer, or the conversation is longer than the model's prompt.
        ModelUnsupportedError: the model has no known chat template.
        BackendError: the runtime failed.
    """
    watch = Stopwatch()
    with watch.stage("prompt"):
        layout = chat_layout(request.turns, model.tokenizer, model.spec)
        decoder = DecoderName.DIFFUSION if model.sampling else DecoderName.AUTOREGRESSIVE
        limits = Limits(_canvas_length(model, request), request.max_tokens, None, deadline=deadline)
        run = DecodeRun(model, decoder, layout, limits, watch, seed=request.seed)
    (draft, *_) = yield from run.drafts()
    text = model.tokenizer.decode(draft.ids[: request.max_tokens]).decode("utf-8", "replace")
    return FillResult(
        model=model.spec.name,
        candidates=() if draft.is_empty else (Candidate(text, draft.score),),
        rejections=(Rejection(Reason.UNFINISHED),) if draft.is_empty else (),
        canvas_length=limits.canvas_length,
        steps=run.decoder.num_passes,
        output_tokens=len(draft.confidence),
        prompt_tokens=len(layout.prompt_ids),
        cached_tokens=len(layout.prompt_ids) - run.decoder.num_decoded,
        timings=watch.timings(),
        decoder=decoder,
        slot=run.slot,
    )


def _canvas_length(model: EngineModel, request: ChatRequest) -> int:
    """The shortest canvas that holds the longest answer, or the longest canvas."""
    lengths = model.spec.canvas_lengths if model.sampling else ()
    return min((length for length in lengths if length >= request.max_tokens), default=max(lengths, default=0))
