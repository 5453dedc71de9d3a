"""An engine without a model: asks one behind a server, and judges what it says like everything else.

There is no canvas: nothing is frozen, no step is seen, and nobody says how sure the model is.
"""

import math
import time
from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from dg_lsp.canvas.layout import token_ids
from dg_lsp.canvas.spec import DecoderName, ModelSpec, PromptFormat
from dg_lsp.context.asking import Answers, Asking, Said, Task, TextModel
from dg_lsp.context.document import LINE_END, TextStyle
from dg_lsp.context.snippets import within
from dg_lsp.context.window import CHARS_PER_TOKEN, Prompt, prompt_at, shown_path
from dg_lsp.diffusion.denoiser import Footprint
from dg_lsp.diffusion.step import Step
from dg_lsp.engine.decoders.base import EMPTY, Framer, Progress
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import ChatRequest, FillRequest, RewriteRequest
from dg_lsp.engine.request_denoiser import Stopwatch
from dg_lsp.engine.result import FillResult, Frame, RewriteResult
from dg_lsp.engine.rewrite import as_comment, whole_lines, without_blanks
from dg_lsp.engine.stop_criteria import Limits, limits_of, meets_stop_criteria
from dg_lsp.errors import ModelUnsupportedError, RequestError
from dg_lsp.postprocess.text_edits import cut_lines
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection, judge, judge_rewrite, rank
from dg_lsp.settings import FillSettings

SUFFIX_SHARE = 0.25
SPARE = 96
GROWTH = 2
"""Times as long as the selection that a rewrite may get, and `SPARE` tokens more."""
_NOTHING = Step(0, token_ids([]), token_ids([]), np.empty(0, np.bool_), np.empty(0, np.bool_), np.empty(0, np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class Told(Progress):
    """What came from the server instead of a step."""

    text: str = ""


class TextFramer(Framer):
    """Frames without cells."""

    def __init__(self) -> None:
        pass

    def frame(self, progress: Progress) -> Frame:
        """The text so far."""
        return Frame(progress.block, progress.number, (), progress.text if isinstance(progress, Told) else "")


class RemoteEngine(Engine):
    """Answers as an engine does. Nothing of the one that it stands for is used."""

    def __init__(self, model: TextModel, settings: FillSettings) -> None:
        self._model = model
        self._settings = settings
        self._spec = ModelSpec(
            model.name,
            vocab_size=1,
            sampling=None,
            end_ids=(),
            prompt_format=PromptFormat.INSTRUCT if model.follows_instructions else PromptFormat.PREFIX,
            canvas_lengths=(),
            max_prompt_tokens=model.max_prompt_tokens,
        )

    @property
    def follows_instructions(self) -> bool:
        """See `Engine.follows_instructions`."""
        return self._model.follows_instructions

    @property
    def footprint(self) -> Footprint:
        """Nothing is held here."""
        return Footprint()

    def run(self, request: FillRequest, *, deadline: float | None = None) -> Generator[Progress, None, FillResult]:
        """One value whenever there is more, and every few milliseconds; then the result.

        Raises:
            RemoteError: the server is gone, refuses, or does not speak as it should.
        """
        watch = Stopwatch()
        with watch.stage("prompt"):
            limits = limits_of(request, self._settings, self._spec, DecoderName.AUTOREGRESSIVE, deadline)
            room = int(request.extra.share * self._spec.max_prompt_tokens * CHARS_PER_TOKEN)
            prompt = replace(self._prompt(request), extra=within(request.extra, room))
            session = request.snapshot.uri
            asking = Asking(Task.FILL, prompt, limits.max_tokens, request.num_candidates, request.seed, session=session)
        said = yield from watch.relay(self._listen(asking, limits))
        with watch.stage("postprocess"):
            texts = said.texts or ("",)
            verdicts = [self._judged(_whole(text, said), said, request, limits) for text in texts]
            candidates, rejections = rank(verdicts)
        return self._result(said, candidates[: request.num_candidates], rejections, watch)

    def frames(self, request: FillRequest, *, deadline: float | None = None) -> Generator[Frame, None, FillResult]:
        """No canvas is seen from here: the result, without a frame."""
        yield from ()
        return self.fill(request, deadline=deadline)

    def framer(self) -> Framer:
        """See `Engine.framer`."""
        return TextFramer()

    def chat(self, request: ChatRequest, *, deadline: float) -> Generator[Progress, None, FillResult]:
        """See `Engine.chat`.

        Raises:
            ModelUnsupportedError: the server is not asked by its chat's API.
            RemoteError: as `run` does.
        """
        if not self.follows_instructions:
            raise ModelUnsupportedError(f"{self._spec.name} is not asked in chats: set remote.api to chat")
        watch = Stopwatch()
        turns = tuple((turn.role.value, turn.text) for turn in request.turns)
        asking = Asking(Task.CHAT, Prompt("", ""), request.max_tokens, 1, request.seed, turns, request.name)
        limits = Limits(0, request.max_tokens, None, deadline=deadline)
        said = yield from watch.relay(self._listen(asking, limits))
        text = said.texts[0] if said.texts else ""
        candidates = (Candidate(text, 0.0),) if text else ()
        return self._result(said, candidates, () if text else (Rejection(Reason.UNFINISHED),), watch)

    def rewrite(
        self, request: RewriteRequest, *, deadline: float | None = None
    ) -> Generator[Progress, None, RewriteResult]:
        """See `Engine.rewrite`. A server that knows no instructions fills the gap that the stretch leaves.

        Raises:
            RequestError: the stretch is empty or outside of the buffer, or some of it is to be kept.
            RemoteError: as `run` does.
        """
        end = time.monotonic() + request.deadline_ms / 1e3 if deadline is None else deadline
        is_instructed = bool(request.instruction.strip()) and self.follows_instructions
        request = self._checked(request, is_instructed=is_instructed)
        watch = Stopwatch()
        with watch.stage("prompt"):
            asking = self._asking(request, is_instructed=is_instructed)
            old = request.snapshot.text[request.start : request.end]
            limits = Limits(0, asking.max_tokens, None if is_instructed else len(LINE_END.split(old)), deadline=end)
        said = yield from watch.relay(self._listen(asking, limits))
        with watch.stage("postprocess"):
            verdict = self._verdict(said, request, limits)
        is_shown = isinstance(verdict, Candidate)
        return RewriteResult(
            model=said.model or self._spec.name,
            start=request.start,
            end=request.end,
            text=verdict.text if isinstance(verdict, Candidate) else "",
            rejection=verdict if isinstance(verdict, Rejection) else None,
            score=0.0,
            confidence=float(is_shown),
            follows_instructions=self.follows_instructions,
            steps=said.steps,
            timings=watch.timings(),
        )

    def configured(self, settings: FillSettings) -> "RemoteEngine":
        """See `Engine.configured`."""
        return RemoteEngine(self._model, settings)

    def close(self) -> None:
        """Closes the connections."""
        self._model.close()

    def _listen(self, asking: Asking, limits: Limits) -> Generator[Progress, None, Said]:
        """The answer, as far as it is wanted: whoever has heard enough hangs up."""
        deadline = limits.deadline if limits.deadline < math.inf else time.monotonic() + _UNHURRIED
        answers: Answers = self._model.ask(asking, deadline)
        said, number = Said(), 0
        try:
            for said in answers:
                number += 1
                if asking.task is Task.FILL and _is_enough(said, asking, limits):
                    break
                yield Told(0, number, _NOTHING, EMPTY, said.texts[0] if said.texts else "")
        finally:
            answers.close()
        return said

    def _prompt(self, request: FillRequest) -> Prompt:
        chars = self._spec.max_prompt_tokens * CHARS_PER_TOKEN
        snapshot = request.snapshot
        prompt = prompt_at(
            snapshot,
            request.offset,
            prefix_chars=int(chars * (1 - SUFFIX_SHARE)),
            suffix_chars=int(chars * SUFFIX_SHARE),
            suffix_lines=request.suffix_lines,
        )
        return replace(prompt, path=shown_path(snapshot.uri), language=snapshot.language)

    def _judged(self, text: str, said: Said, request: FillRequest, limits: Limits) -> Candidate | Rejection:
        if not text.strip() and not said.is_ended:
            return Rejection(Reason.UNFINISHED)
        return judge(
            text.encode("utf-8", "surrogatepass"),
            snapshot=request.snapshot,
            offset=request.offset,
            cursor=request.cursor,
            max_lines=limits.max_lines,
            score=0.0,
            check_syntax=self._settings.check_syntax,
        )

    def _checked(self, request: RewriteRequest, *, is_instructed: bool) -> RewriteRequest:
        text = request.snapshot.text
        if not 0 <= request.start < request.end <= len(text) or not text[request.start : request.end].strip():
            raise RequestError("there is nothing to rewrite: select some code")
        if request.strength < 1:
            raise RequestError(
                f"{self._spec.name} shows no canvas to renoise: use strength 1, or a model in this process"
            )
        start, end = (whole_lines if is_instructed else without_blanks)(text, request.start, request.end)
        return replace(request, start=start, end=end)

    def _asking(self, request: RewriteRequest, *, is_instructed: bool) -> Asking:
        snapshot = request.snapshot
        text, old = snapshot.text, snapshot.text[request.start : request.end]
        comment = "" if is_instructed else as_comment(request)
        around = replace(snapshot, text=text[: request.start] + comment + text[request.end :])
        prompt = self._prompt(FillRequest(around, request.start + len(comment)))
        selection = TextStyle.of(text, request.start).to_model(old)
        max_tokens = GROWTH * len(old) // CHARS_PER_TOKEN + SPARE
        if not is_instructed:
            return Asking(Task.FILL, prompt, max_tokens, seed=request.seed, session=snapshot.uri)
        prompt = replace(prompt, selection=selection, instruction=request.instruction.strip())
        return Asking(Task.REWRITE, prompt, max_tokens, seed=request.seed, session=snapshot.uri)

    def _verdict(self, said: Said, request: RewriteRequest, limits: Limits) -> Candidate | Rejection:
        """Half a rewrite is none."""
        text = said.texts[0] if said.texts else ""
        if not (said.is_ended or (limits.max_lines is not None and meets_stop_criteria(text, limits))):
            return Rejection(Reason.UNFINISHED)
        return judge_rewrite(
            cut_lines(text, limits.max_lines).encode("utf-8", "surrogatepass"),
            snapshot=request.snapshot,
            start=request.start,
            end=request.end,
            score=0.0,
            check_syntax=self._settings.check_syntax,
        )

    def _result(
        self, said: Said, candidates: tuple[Candidate, ...], rejections: tuple[Rejection, ...], watch: Stopwatch
    ) -> FillResult:
        return FillResult(
            model=said.model or self._spec.name,
            candidates=candidates,
            rejections=rejections,
            canvas_length=said.canvas_length,
            steps=said.steps,
            output_tokens=said.output_tokens,
            prompt_tokens=said.prompt_tokens,
            cached_tokens=min(said.cached_tokens, said.prompt_tokens),
            timings=watch.timings(),
        )


_UNHURRIED = 600.0
"""Seconds that are waited where nobody set a deadline."""


def _is_enough(said: Said, asking: Asking, limits: Limits) -> bool:
    return len(said.texts) == asking.num_answers and all(meets_stop_criteria(text, limits) for text in said.texts)


def _whole(text: str, said: Said) -> str:
    """Without a last line that was broken off, where whole ones precede it."""
    lines = text[: text.rfind("\n") + 1]
    return text if said.is_ended or not lines.strip() else lines
