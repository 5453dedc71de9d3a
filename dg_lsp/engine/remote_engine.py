"""An engine over a model behind a server, which shows no canvas, no steps and no probabilities.

Its candidates pass the same checks as those of a local model.
"""

import math
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dg_lsp.backends.remote.dialects import RemoteAnswer, RemoteQuery, RemoteTask
from dg_lsp.canvas.fim import SUFFIX_SHARE
from dg_lsp.canvas.layout import NOTHING
from dg_lsp.canvas.spec import DecoderName, ModelSpec, PromptFormat
from dg_lsp.context.document import LINE_END, TextStyle
from dg_lsp.context.snippets import within
from dg_lsp.context.window import CHARS_PER_TOKEN, Prompt, prompt_at, shown_path
from dg_lsp.diffusion.denoiser import Footprint
from dg_lsp.engine.decode_run import Stopwatch
from dg_lsp.engine.decoders.base import EMPTY, Framer, Progress
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import ChatRequest, FillRequest, RewriteRequest
from dg_lsp.engine.result import FillResult, Frame, RewriteResult
from dg_lsp.engine.rewrite import GROWTH, SPARE, as_comment, check_range, whole_range
from dg_lsp.engine.stop_criteria import Limits, limits_of, meets_stop_criteria
from dg_lsp.errors import ModelUnsupportedError, RequestError
from dg_lsp.postprocess.text_edits import cut_lines
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection, judge, judge_rewrite, rank
from dg_lsp.settings import CompletionSettings

if TYPE_CHECKING:
    from dg_lsp.backends.remote.client import RemoteModel

NO_DEADLINE_SECONDS = 600.0
"""How long a request without a deadline waits for the server."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamProgress(Progress):
    """The text received so far, in place of tokens."""

    text: str = ""


class TextFramer(Framer):
    """Makes frames that have a text and no cells."""

    def __init__(self) -> None:
        pass

    def frame(self, progress: Progress) -> Frame:
        """See `Framer.frame`."""
        text = progress.text if isinstance(progress, StreamProgress) else ""
        return Frame(progress.block, progress.number, (), text)


class RemoteEngine(Engine):
    """See `Engine`. A request yields whenever its text grows and every few milliseconds.

    Every request raises a `RemoteError` where `RemoteModel.stream` does.
    """

    def __init__(self, model: "RemoteModel", settings: CompletionSettings) -> None:
        self.settings = settings
        self.follows_instructions = model.follows_instructions
        self.spec = ModelSpec(
            model.name,
            vocab_size=1,
            sampling=None,
            end_ids=(),
            prompt_format=PromptFormat.INSTRUCT if model.follows_instructions else PromptFormat.PREFIX,
            canvas_lengths=(),
            max_prompt_tokens=model.max_prompt_tokens,
        )
        self._model = model

    @property
    def footprint(self) -> Footprint:
        """No memory of this machine."""
        return Footprint()

    def run(self, request: FillRequest, *, deadline: float | None = None) -> Generator[Progress, None, FillResult]:
        """See `Engine.run`."""
        watch = Stopwatch()
        with watch.stage("prompt"):
            limits = limits_of(request, self.settings, self.spec, DecoderName.AUTOREGRESSIVE, deadline)
            max_chars = int(request.snippets.share * self.spec.max_prompt_tokens * CHARS_PER_TOKEN)
            prompt = replace(self._prompt(request), snippets=within(request.snippets, max_chars))
            counts = limits.max_tokens, request.num_candidates
            query = RemoteQuery(RemoteTask.FILL, prompt, *counts, request.seed, session=request.snapshot.uri)
        answer = yield from watch.relay(self._stream(query, limits))
        with watch.stage("postprocess"):
            verdicts = [self._judge_text(text, answer, request, limits) for text in answer.texts or ("",)]
            candidates, rejections = rank(verdicts)
        return self._result(answer, candidates[: request.num_candidates], rejections, watch)

    def frames(self, request: FillRequest, *, deadline: float | None = None) -> Generator[Frame, None, FillResult]:
        """See `Engine.frames`: no frame, only the result."""
        yield from ()
        return self.fill(request, deadline=deadline)

    def framer(self) -> Framer:
        """See `Engine.framer`."""
        return TextFramer()

    def chat(self, request: ChatRequest, *, deadline: float) -> Generator[Progress, None, FillResult]:
        """See `Engine.chat`."""
        if not self.follows_instructions:
            raise ModelUnsupportedError(f"{self.spec.name} does not accept chats: set remote.api to chat")
        watch = Stopwatch()
        messages = tuple((turn.role.value, turn.text) for turn in request.turns)
        query = RemoteQuery(
            RemoteTask.CHAT, Prompt("", ""), request.max_tokens, 1, request.seed, messages, request.name
        )
        limits = Limits(0, request.max_tokens, None, deadline=deadline)
        answer = yield from watch.relay(self._stream(query, limits))
        if text := answer.texts[0] if answer.texts else "":
            return self._result(answer, (Candidate(text, 0.0),), (), watch)
        return self._result(answer, (), (Rejection(Reason.UNFINISHED),), watch)

    def rewrite(
        self, request: RewriteRequest, *, deadline: float | None = None
    ) -> Generator[Progress, None, RewriteResult]:
        """See `Engine.rewrite`. A server without instructions fills the gap that the selection leaves."""
        watch = Stopwatch()
        with watch.stage("prompt"):
            end = time.monotonic() + request.deadline_ms / 1e3 if deadline is None else deadline
            is_instructed = bool(request.instruction.strip()) and self.follows_instructions
            check_range(request)
            if request.strength < 1:
                raise RequestError(f"{self.spec.name} has no canvas to renoise: use strength 1, or a local model")
            request = whole_range(request, is_instructed=is_instructed)
            query = self._rewrite_query(request, is_instructed=is_instructed)
            old = request.snapshot.text[request.start : request.end]
            limits = Limits(0, query.max_tokens, None if is_instructed else len(LINE_END.split(old)), deadline=end)
        answer = yield from watch.relay(self._stream(query, limits))
        with watch.stage("postprocess"):
            verdict = self._judge_rewrite(answer, request, limits)
        is_shown = isinstance(verdict, Candidate)
        return RewriteResult(
            model=answer.model or self.spec.name,
            start=request.start,
            end=request.end,
            text=verdict.text if isinstance(verdict, Candidate) else "",
            rejection=verdict if isinstance(verdict, Rejection) else None,
            score=0.0,
            confidence=float(is_shown),
            follows_instructions=self.follows_instructions,
            steps=answer.steps,
            timings=watch.timings(),
        )

    def configured(self, settings: CompletionSettings) -> "RemoteEngine":
        """See `Engine.configured`."""
        return RemoteEngine(self._model, settings)

    def close(self) -> None:
        """Closes the connections."""
        self._model.close()

    def _stream(self, query: RemoteQuery, limits: Limits) -> Generator[Progress, None, RemoteAnswer]:
        """The answer, as far as it is needed; then the request is cancelled."""
        deadline = limits.deadline if limits.deadline < math.inf else time.monotonic() + NO_DEADLINE_SECONDS
        answers = self._model.stream(query, deadline)
        answer = RemoteAnswer()
        try:
            for number, answer in enumerate(answers, start=1):
                is_fill = query.task is RemoteTask.FILL and len(answer.texts) == query.num_answers
                if is_fill and all(meets_stop_criteria(text, limits) for text in answer.texts):
                    break
                text = answer.texts[0] if answer.texts else ""
                yield StreamProgress(0, number, EMPTY, NOTHING, EMPTY.confidence, text=text)
        finally:
            answers.close()
        return answer

    def _prompt(self, request: FillRequest) -> Prompt:
        chars = self.spec.max_prompt_tokens * CHARS_PER_TOKEN
        snapshot = request.snapshot
        prompt = prompt_at(
            snapshot,
            request.offset,
            prefix_chars=int(chars * (1 - SUFFIX_SHARE)),
            suffix_chars=int(chars * SUFFIX_SHARE),
            suffix_lines=request.suffix_lines,
        )
        return replace(prompt, path=shown_path(snapshot.uri), language=snapshot.language)

    def _judge_text(
        self, text: str, answer: RemoteAnswer, request: FillRequest, limits: Limits
    ) -> Candidate | Rejection:
        """A last line that is not finished is dropped if complete lines precede it."""
        if not text.strip() and not answer.is_finished:
            return Rejection(Reason.UNFINISHED)
        lines = text[: text.rfind("\n") + 1]
        if not answer.is_finished and lines.strip():
            text = lines
        return judge(
            text.encode("utf-8", "surrogatepass"),
            snapshot=request.snapshot,
            offset=request.offset,
            cursor=request.cursor,
            max_lines=limits.max_lines,
            score=0.0,
            check_syntax=self.settings.check_syntax,
        )

    def _rewrite_query(self, request: RewriteRequest, *, is_instructed: bool) -> RemoteQuery:
        snapshot = request.snapshot
        text, old = snapshot.text, snapshot.text[request.start : request.end]
        comment = "" if is_instructed else as_comment(request)
        around = replace(snapshot, text=text[: request.start] + comment + text[request.end :])
        prompt = self._prompt(FillRequest(around, request.start + len(comment)))
        if is_instructed:
            selection = TextStyle.of(text, request.start).to_model(old)
            prompt = replace(prompt, selection=selection, instruction=request.instruction.strip())
        task = RemoteTask.REWRITE if is_instructed else RemoteTask.FILL
        max_tokens = GROWTH * len(old) // CHARS_PER_TOKEN + SPARE
        return RemoteQuery(task, prompt, max_tokens, seed=request.seed, session=snapshot.uri)

    def _judge_rewrite(self, answer: RemoteAnswer, request: RewriteRequest, limits: Limits) -> Candidate | Rejection:
        text = answer.texts[0] if answer.texts else ""
        if not (answer.is_finished or (limits.max_lines is not None and meets_stop_criteria(text, limits))):
            return Rejection(Reason.UNFINISHED)
        return judge_rewrite(
            cut_lines(text, limits.max_lines).encode("utf-8", "surrogatepass"),
            snapshot=request.snapshot,
            start=request.start,
            end=request.end,
            score=0.0,
            check_syntax=self.settings.check_syntax,
        )

    def _result(
        self,
        answer: RemoteAnswer,
        candidates: tuple[Candidate, ...],
        rejections: tuple[Rejection, ...],
        watch: Stopwatch,
    ) -> FillResult:
        return FillResult(
            model=answer.model or self.spec.name,
            candidates=candidates,
            rejections=rejections,
            canvas_length=answer.canvas_length,
            steps=answer.steps,
            output_tokens=answer.output_tokens,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=min(answer.cached_tokens, answer.prompt_tokens),
            timings=watch.timings(),
        )
