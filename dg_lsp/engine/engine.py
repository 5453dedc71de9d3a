"""One request in, ranked candidates out.

Is handed a denoiser and its tokenizer. Not thread-safe: one thread owns an engine (see `worker`).
"""

import time
from collections.abc import Generator

import numpy as np

from dg_lsp.canvas.fim import SUFFIX_SHARE, fim_prompt
from dg_lsp.canvas.plan import TokenIds
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.context.place import Place, allowed_lines
from dg_lsp.context.window import prompt_at
from dg_lsp.diffusion.denoiser import Denoiser
from dg_lsp.engine.draft import Draft
from dg_lsp.engine.drain import drain
from dg_lsp.engine.filling import Filling, Limits, Progress, with_overrides
from dg_lsp.engine.frames import Framer
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.result import FillResult, Frame
from dg_lsp.engine.slots import Slots
from dg_lsp.engine.stopwatch import Stopwatch
from dg_lsp.engine.timed import TimedDenoiser
from dg_lsp.errors import RequestError
from dg_lsp.postprocess.candidate import Candidate, Reason, Rejection
from dg_lsp.postprocess.judge import judge
from dg_lsp.postprocess.rank import rank
from dg_lsp.settings import FillSettings

CHARS_PER_TOKEN = 4
"""What a token of source text holds, about; the prompt is cut to its tokens afterwards."""


class Engine:
    """A model, its KV cache and how requests use them."""

    def __init__(self, denoiser: Denoiser, tokenizer: Tokenizer, settings: FillSettings) -> None:
        self._denoiser = denoiser
        self._tokenizer = tokenizer
        self._settings = settings
        self._slots = Slots(denoiser.num_slots)

    @property
    def spec(self) -> ModelSpec:
        """The model's."""
        return self._denoiser.spec

    @property
    def settings(self) -> FillSettings:
        """What a request that says nothing gets."""
        return self._settings

    def fill(self, request: FillRequest, *, deadline: float | None = None) -> FillResult:
        """The result, without looking at the steps.

        Raises:
            RequestError, BackendError: as `run` does.
        """
        return drain(self.run(request, deadline=deadline))

    def run(self, request: FillRequest, *, deadline: float | None = None) -> Generator[Progress, None, FillResult]:
        """One value per denoising step, then the result. Not asking for the next one cancels the request.

        Args:
            request: what is asked.
            deadline: in `time.monotonic` seconds; None counts the request's own from now.

        Raises:
            RequestError: the canvas length or the number of candidates is more than the model takes.
            BackendError: the runtime failed.
        """
        watch = Stopwatch()
        with watch.stage("prompt"):
            limits = self._limits(request, deadline)
            prompt_ids = self._prompt_ids(request)
        denoiser = TimedDenoiser(self._denoiser, watch)
        slot = self._slots.choose(prompt_ids)
        num_decoded = denoiser.prefill(slot, prompt_ids)
        self._slots.hold(slot, prompt_ids)
        sampling = with_overrides(self.spec.sampling, self._settings.confidence_threshold, self._settings.order)
        filling = Filling(denoiser, self._tokenizer, sampling, limits, np.random.default_rng(request.seed))
        drafts = yield from watch.passing_on(filling.run(slot, prompt_ids))
        with watch.stage("postprocess"):
            verdicts = [self._judge(draft, request, limits) for draft in drafts]
            candidates, rejections = rank(verdicts)
        best = drafts[verdicts.index(candidates[0])] if candidates else drafts[0]
        return FillResult(
            model=self.spec.name,
            candidates=candidates,
            rejections=rejections,
            canvas_length=limits.canvas_length,
            steps=max(draft.steps for draft in drafts),
            tokens_per_forward=best.tokens_per_forward,
            prompt_tokens=len(prompt_ids),
            cached_tokens=len(prompt_ids) - num_decoded,
            timings=watch.timings(),
        )

    def frames(self, request: FillRequest, *, deadline: float | None = None) -> Generator[Frame, None, FillResult]:
        """`run` for who wants to look at the canvas."""
        framer = Framer(self._tokenizer, self.spec)
        steps = self.run(request, deadline=deadline)
        while True:
            try:
                progress = next(steps)
            except StopIteration as end:
                result: FillResult = end.value
                return result
            yield framer.frame(progress)

    def close(self) -> None:
        """Gives the model's memory back."""
        self._denoiser.close()

    def _limits(self, request: FillRequest, deadline: float | None) -> Limits:
        settings, lengths = self._settings, self.spec.canvas_lengths
        max_lines = request.max_lines
        if max_lines is None:
            max_lines = allowed_lines(Place.at(request.snapshot.text, request.offset))
        if settings.canvas_length > lengths[-1]:
            raise RequestError(
                f"canvas length {settings.canvas_length} is more than {self.spec.name} was trained for; "
                f"choose at most {lengths[-1]}"
            )
        wanted = 16 if max_lines == 1 else 32
        canvas_length = settings.canvas_length or min((n for n in lengths if n >= wanted), default=lengths[-1])
        if deadline is None:
            deadline = time.monotonic() + (request.deadline_ms or settings.deadline_ms) / 1e3
        return Limits(canvas_length, settings.max_tokens, max_lines, request.num_candidates, deadline)

    def _prompt_ids(self, request: FillRequest) -> TokenIds:
        chars = self.spec.max_prompt_tokens * CHARS_PER_TOKEN
        prompt = prompt_at(
            request.snapshot,
            request.offset,
            prefix_chars=chars,
            suffix_chars=int(chars * SUFFIX_SHARE),
            suffix_lines=request.suffix_lines,
        )
        return fim_prompt(prompt, self._tokenizer, self.spec, self.spec.max_prompt_tokens)

    def _judge(self, draft: Draft, request: FillRequest, limits: Limits) -> Candidate | Rejection:
        if not len(draft.confidence):
            return Rejection(Reason.UNFINISHED)
        return judge(
            self._tokenizer.decode(draft.ids),
            snapshot=request.snapshot,
            offset=request.offset,
            max_lines=limits.max_lines,
            score=draft.score,
            check_syntax=self._settings.check_syntax,
        )
