"""One request in, ranked candidates out.

Is handed a denoiser and its tokenizer. Not thread-safe: one thread owns an engine (see `worker`).
"""

import time
from collections.abc import Generator
from dataclasses import replace

import numpy as np

from dg_lsp.canvas.echo import BufferTokens, Echo
from dg_lsp.canvas.fim import SUFFIX_SHARE
from dg_lsp.canvas.formats import in_format, layout_of
from dg_lsp.canvas.layout import Layout
from dg_lsp.canvas.remembering import RememberingTokenizer
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.context.place import Place, allowed_lines
from dg_lsp.context.prompt import shown_path
from dg_lsp.context.window import CHARS_PER_TOKEN, prompt_at
from dg_lsp.diffusion.denoiser import Denoiser, Footprint
from dg_lsp.engine.chance import chance_of
from dg_lsp.engine.chat import ChatRequest, Chatting
from dg_lsp.engine.costs import StepCosts
from dg_lsp.engine.draft import Draft
from dg_lsp.engine.drain import drain
from dg_lsp.engine.echoing import EchoingDenoiser
from dg_lsp.engine.enough import Enough
from dg_lsp.engine.filling import Progress, Task
from dg_lsp.engine.frames import Framer
from dg_lsp.engine.holding import HoldingDenoiser
from dg_lsp.engine.limits import Limits, limits_of
from dg_lsp.engine.planner import PlaceKind, Planner
from dg_lsp.engine.plans.choice import filling_of
from dg_lsp.engine.plans.name import PlanName
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.result import FillResult, Frame
from dg_lsp.engine.rewrite import RewriteRequest, RewriteResult
from dg_lsp.engine.rewriting import Rewriting
from dg_lsp.engine.sampling import with_overrides
from dg_lsp.engine.slots import Slots
from dg_lsp.engine.stopwatch import Stopwatch
from dg_lsp.engine.timed import TimedDenoiser
from dg_lsp.postprocess.candidate import Candidate, Reason, Rejection
from dg_lsp.postprocess.judge import judge
from dg_lsp.postprocess.rank import rank
from dg_lsp.settings import FillSettings


class Engine:
    """A model, its KV cache and how requests use them."""

    def __init__(
        self,
        denoiser: Denoiser,
        tokenizer: Tokenizer,
        settings: FillSettings,
        costs: StepCosts | None = None,
        slots: Slots | None = None,
    ) -> None:
        """Without costs, `auto` denoises a canvas wherever the model has one; without slots, they are empty.

        Raises:
            RequestError: the model cannot be asked in the settings' prompt format.
        """
        self._denoiser = denoiser
        self._spec = in_format(denoiser.spec, settings.prompt_format)
        self._tokenizer = tokenizer
        self._remembering = RememberingTokenizer(tokenizer)
        self._settings = settings
        self._sampling = with_overrides(denoiser.spec.sampling, settings.confidence_threshold, settings.order)
        self.planner = Planner(self._spec, costs, wanted_length=settings.canvas_length)
        """What `auto` asks. Read it, don't change it."""
        self._slots = slots or Slots(denoiser.num_slots)
        self._buffers = BufferTokens(tokenizer, denoiser.spec.echo_match)
        self._chatting = Chatting(denoiser, tokenizer, self._spec, self._sampling, self._slots)
        self._rewriting = Rewriting(denoiser, tokenizer, self._spec, self._sampling, self._slots, self.run)

    @property
    def spec(self) -> ModelSpec:
        """The model's, in the prompt format in which it is asked."""
        return self._spec

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
        """One value per forward pass, then the result. Not asking for the next one cancels the request.

        Args:
            request: what is asked.
            deadline: in `time.monotonic` seconds; None counts the request's own from now.

        Raises:
            RequestError: the plan, the canvas length or the number of candidates is nothing that the model can do.
            BackendError: the runtime failed.
        """
        watch = Stopwatch()
        with watch.stage("prompt"):
            plan = self._plan(request)
            layout = self._layout(request, plan)
            limits = limits_of(request, self._settings, self.spec, plan, deadline, layout)
            enough = Enough(self._tokenizer, limits, layout.stop)
            prompt_ids = layout.prompt_ids
            denoiser: Denoiser = TimedDenoiser(HoldingDenoiser(self._denoiser, self._slots), watch, self.spec)
            if echo := self._echo(request):
                denoiser = EchoingDenoiser(denoiser, echo, layout)
            task = Task(denoiser, limits, enough, np.random.default_rng(request.seed), echo)
            filling = filling_of(plan, task, self._sampling)
        slot = self._slots.choose(prompt_ids)
        num_decoded = filling.prefill(slot, prompt_ids, self._slots.num_shared(slot, prompt_ids))
        self._slots.hold(slot, prompt_ids)
        drafts = yield from watch.passing_on(filling.run(slot, layout))
        with watch.stage("postprocess"):
            verdicts = [self._judge(draft, enough, request, limits) for draft in drafts]
            candidates, rejections = rank(verdicts)
        best = drafts[verdicts.index(candidates[0])] if candidates else drafts[0]
        return FillResult(
            model=self.spec.name,
            candidates=candidates[: request.num_candidates],
            rejections=rejections,
            canvas_length=limits.canvas_length,
            steps=max(draft.steps for draft in drafts),
            tokens_per_forward=best.tokens_per_forward,
            prompt_tokens=len(prompt_ids),
            cached_tokens=len(prompt_ids) - num_decoded,
            timings=watch.timings(),
            plan=plan,
            slot=slot,
        )

    def frames(self, request: FillRequest, *, deadline: float | None = None) -> Generator[Frame, None, FillResult]:
        """`run` for who wants to look at the canvas."""
        framer, steps = self.framer(), self.run(request, deadline=deadline)
        while True:
            try:
                progress = next(steps)
            except StopIteration as end:
                result: FillResult = end.value
                return result
            yield framer.frame(progress)

    def chat(self, request: ChatRequest, *, deadline: float) -> Generator[Progress, None, FillResult]:
        """One value per forward pass, then the answer as the only candidate. Not asking for the next one cancels.

        `deadline` is in `time.monotonic` seconds; at it, what is settled is the answer.

        Raises:
            RequestError: nobody said anything, or more than the model takes.
            ModelUnsupportedError: the model has no chat template that is known here.
            BackendError: the runtime failed.
        """
        return self._chatting.run(request, deadline)

    def framer(self) -> Framer:
        """What makes frames of progress; for any thread."""
        return Framer(self._tokenizer, self._spec)

    def configured(self, settings: FillSettings) -> "Engine":
        """An engine with other settings over the same model, whose slots they share; one of them at a time may be used.

        Raises:
            RequestError: the model cannot be asked in the settings' prompt format.
        """
        return type(self)(self._denoiser, self._tokenizer, settings, self.planner.costs, self._slots)

    def rewrite(
        self, request: RewriteRequest, *, deadline: float | None = None
    ) -> Generator[Progress, None, RewriteResult]:
        """One value per forward pass, then what stands for the stretch. Not asking for the next one cancels.

        Raises:
            RequestError: the stretch is empty or outside of the buffer, or the model lacks what the strength needs.
            BackendError: the runtime failed.
        """
        end = time.monotonic() + request.deadline_ms / 1e3 if deadline is None else deadline
        return self._rewriting.run(request, deadline=end, check_syntax=self._settings.check_syntax)

    @property
    def follows_instructions(self) -> bool:
        """Whether a rewrite's instruction is understood, or only seen as a comment."""
        return self._rewriting.follows_instructions

    @property
    def footprint(self) -> Footprint:
        """What the model holds of the memory here; for any thread."""
        return self._denoiser.footprint

    def close(self) -> None:
        """Gives the model's memory back."""
        self._denoiser.close()

    def _plan(self, request: FillRequest) -> PlanName:
        """What runs; several candidates are a race wherever there is a canvas."""
        plan = request.plan or PlanName(self._settings.plan)
        several = request.num_candidates > 1
        if plan is PlanName.AUTO and not (several and self.spec.sampling):
            place = Place.at(request.snapshot.text, request.offset)
            max_lines = allowed_lines(place) if request.max_lines is None else request.max_lines
            return self.planner.choose(PlaceKind.of(place, max_lines))
        return PlanName.RACE if several and plan in (PlanName.AUTO, PlanName.CANVAS) else plan

    def _layout(self, request: FillRequest, plan: PlanName) -> Layout:
        """The place in the model's format; who goes on causally has all that precedes the hole in the prompt."""
        chars = self.spec.max_prompt_tokens * CHARS_PER_TOKEN
        prompt = prompt_at(
            request.snapshot,
            request.offset,
            prefix_chars=chars,
            suffix_chars=int(chars * SUFFIX_SHARE),
            suffix_lines=request.suffix_lines,
        )
        snapshot = request.snapshot
        prompt = replace(prompt, path=shown_path(snapshot.uri), language=snapshot.language, extra=request.extra)
        layout = layout_of(prompt, self._remembering, self.spec, self.spec.max_prompt_tokens)
        return layout.in_prompt() if plan.needs_causal_head else layout

    def _echo(self, request: FillRequest) -> Echo | None:
        if not (self._settings.echo and self.spec.echo_match):
            return None
        return self._buffers.echo(request.snapshot.text, request.offset, request.suffix_lines)

    def _judge(self, draft: Draft, enough: Enough, request: FillRequest, limits: Limits) -> Candidate | Rejection:
        if not (len(draft.confidence) or draft.is_ended):
            return Rejection(Reason.UNFINISHED)
        verdict = judge(
            enough.fill(draft),
            snapshot=request.snapshot,
            offset=request.offset,
            max_lines=limits.max_lines,
            score=draft.score,
            check_syntax=self._settings.check_syntax,
        )
        if isinstance(verdict, Rejection):
            return verdict
        return replace(verdict, chance=chance_of(draft.ids, draft.confidence, self._tokenizer))
