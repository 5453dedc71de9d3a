"""An engine over a model behind a server, which shows no canvas, no steps and no probabilities.

Its candidates pass the same checks as those of a local model.
"""

import math
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import PureWindowsPath
from typing import TYPE_CHECKING

from typing_extensions import override

from dg_lsp.backends.remote.dialects import RemoteAnswer, RemoteQuery, RemoteTask
from dg_lsp.canvas.chat_template import ChatTemplate
from dg_lsp.canvas.prompt_format import SNIPPETS_SHARE, fitting, prompt_of
from dg_lsp.canvas.spec import ModelSpec, PromptFormat
from dg_lsp.context.document import LINE_END
from dg_lsp.context.window import CHARS_PER_TOKEN, SUFFIX_SHARE, Prompt
from dg_lsp.engine.decoder_selection import early_stop_ms
from dg_lsp.engine.decoders.base import PROMPT_PIECE, Limits, Progress, RequestCosts, text_ending
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.gaps import GapsFill
from dg_lsp.engine.request import (
    ChatRequest,
    Ending,
    FillRequest,
    FillResult,
    Priority,
    RewriteRequest,
    RewriteResult,
    Verdict,
)
from dg_lsp.engine.rewrite import GROWTH, SPARE, checked_request, rewrite_prompt
from dg_lsp.errors import ModelUnsupportedError, OptionError
from dg_lsp.postprocess.text_edits import cut_lines
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection, rank
from dg_lsp.settings import CompletionSettings

if TYPE_CHECKING:
    from dg_lsp.backends.remote.client import RemoteModel

NO_DEADLINE_SECONDS = 600.0  # that a request without a deadline waits for the server
PREFIX_SHARE = 1 - SUFFIX_SHARE


class RemoteEngine(Engine):
    """See `Engine`. A request yields whenever its text grows and every few milliseconds.

    Every request raises a `RemoteError` where `RemoteModel.stream` does.
    """

    def __init__(self, model: "RemoteModel", settings: CompletionSettings) -> None:
        self.settings = settings
        is_chat = model.dialect.follows_instructions
        self.spec = ModelSpec(
            model.name,
            vocab_size=1,
            sampling=None,
            end_ids=(),
            prompt_format=PromptFormat.INSTRUCT if is_chat else PromptFormat.PREFIX,
            canvas_lengths=(),
            max_prompt_tokens=model.max_prompt_tokens,
            languages=model.languages,
            chat_template=ChatTemplate("") if is_chat else None,  # the server has its own
        )
        self._model = model

    @override
    def complete(
        self, request: FillRequest, *, deadline: float, costs: RequestCosts | None = None
    ) -> Generator[Progress, None, FillResult]:
        if request.priority is Priority.WARM_UP:  # no API of a server has a request that only reads a prompt
            return FillResult.unfinished()
        watch = costs or RequestCosts()
        with watch.stage("prompt"):
            seconds = (request.deadline_ms or self.settings.deadline_ms) / 1e3
            max_tokens = self.settings.max_tokens if request.max_tokens is None else request.max_tokens
            limits = Limits(0, max_tokens, request.line_limit, deadline=deadline)
            prompt = prompt_of(request.snapshot, request.offset, self.spec.max_prompt_tokens, PREFIX_SHARE)
            query = self._query(request, RemoteTask.FILL, prompt, limits)
            query = replace(query, is_invoked=request.priority is Priority.INVOKED)
            # a server reports no passes
            early_stop = limits.deadline - seconds + early_stop_ms(request, self.settings, limits.deadline) / 1e3
        answer = yield from watch.relay(self._stream(query, limits, early_stop))
        watch.num_passes += answer.steps
        with watch.stage("postprocess"):
            verdicts = [self._judge_text(text, answer, request, limits) for text in answer.texts or ("",)]
            candidates, rejections = rank(verdicts)
        result = self._result(answer, candidates[: request.num_candidates], rejections, watch, limits)
        return result.confident(request.min_confidence(self.settings))

    @override
    def chat(self, request: ChatRequest, *, deadline: float) -> Generator[Progress, None, FillResult]:
        if request.is_raw and not self._model.dialect.continues_text:
            raise ModelUnsupportedError(f"{self.spec.name} continues no plain text: set remote.api to completions")
        if not request.is_raw and not self.spec.follows_instructions:
            raise ModelUnsupportedError(f"{self.spec.name} does not accept chats: set remote.api to chat")
        watch = RequestCosts()
        limits = Limits(0, request.max_tokens, None, deadline=deadline, is_stopped=request.is_stopped)
        task = RemoteTask.TEXT if request.is_raw else RemoteTask.CHAT
        query = self._query(request, task, Prompt(request.text or "", ""), limits)
        messages = tuple((turn.role.value, turn.text) for turn in request.turns)
        query = replace(query, messages=messages, stops=request.stops)
        answer = yield from watch.relay(self._stream(query, limits))
        verdict = Candidate(answer.text, 0.0) if answer.text or answer.is_finished else Rejection(Reason.UNFINISHED)
        return self._result(answer, *rank([verdict]), watch, limits)

    @override
    def rewrite(self, request: RewriteRequest, *, deadline: float) -> Generator[Progress, None, RewriteResult]:
        watch = RequestCosts()
        if request.gaps:
            return (yield from GapsFill(self, request, deadline).run())
        with watch.stage("prompt"):
            request = checked_request(request, self.spec)
            old = request.snapshot.text[request.start : request.end]
            max_tokens = GROWTH * len(old) // CHARS_PER_TOKEN + SPARE
            max_lines = None if request.is_instructed else len(LINE_END.split(old))
            limits = Limits(0, max_tokens, max_lines, deadline=deadline)
            prompt = rewrite_prompt(request, self.spec.max_prompt_tokens, prefix_share=PREFIX_SHARE)
            task = RemoteTask.REWRITE if request.is_instructed else RemoteTask.FILL
            query = self._query(request, task, prompt, limits)
        answer = yield from watch.relay(self._stream(query, limits))
        with watch.stage("postprocess"):
            verdicts: list[Verdict] = []
            for text in answer.texts:
                has_all = limits.max_lines is not None and text_ending(text, limits, is_early=False) is not None
                if answer.is_finished or has_all:
                    shown = cut_lines(text, limits.max_lines).encode("utf-8", "surrogatepass")
                    verdicts.append(request.judge(shown, 0.0))
            candidates, rejections = rank(verdicts)
            first, *further = candidates or rejections[:1] or (Rejection(Reason.UNFINISHED),)
        result = RewriteResult(
            request.start,
            request.end,
            first,
            model=self._model_of(answer),
            steps=answer.steps,
            timings=watch.timings(),
        )
        return replace(result, alternatives=tuple(replace(result, verdict=verdict) for verdict in further))

    @override
    def close(self) -> None:
        self._model.close()

    def _query(
        self, request: FillRequest | RewriteRequest | ChatRequest, task: RemoteTask, prompt: Prompt, limits: Limits
    ) -> RemoteQuery:
        """A query with as much code of other files as a local prompt has.

        The session distinguishes one client's document or conversation from others, for the server. Raises
        `OptionError` for options of a sampler, which the server has.
        """
        for name in request.sampler.values:
            raise OptionError(name, "does not apply to a remote server: send the server's own field in remote.extra")
        session = f"{request.subject}?client={request.client}"
        query = RemoteQuery(task, prompt, limits.max_tokens, seed=request.seed, session=session)
        if isinstance(request, ChatRequest):
            return query
        max_chars = int(SNIPPETS_SHARE * self.spec.max_prompt_tokens * CHARS_PER_TOKEN)
        fitted = fitting(request.snippets.chunks, max_chars, lambda chunk: chunk.path + chunk.text)
        prompt = replace(prompt, snippets=replace(request.snippets, chunks=tuple(chunk for chunk, _ in fitted)))
        return replace(query, prompt=prompt, num_answers=request.num_candidates)

    def _stream(
        self, query: RemoteQuery, limits: Limits, early_stop: float = math.inf
    ) -> Generator[Progress, None, RemoteAnswer]:
        """The answer, as far as it is needed; then the request is cancelled.

        Whole lines are enough from `early_stop` on, in `time.monotonic` seconds.
        """
        deadline = limits.deadline if limits.deadline < math.inf else time.monotonic() + NO_DEADLINE_SECONDS
        answers = self._model.stream(query, deadline)
        answer = RemoteAnswer()
        try:
            for number, answer in enumerate(answers, start=1):
                is_fill = query.task is RemoteTask.FILL and len(answer.texts) == query.num_answers
                is_early = time.monotonic() >= early_stop
                if is_fill and all(text_ending(text, limits, is_early=is_early) for text in answer.texts):
                    break
                yield replace(PROMPT_PIECE, number=number, text=answer.text)
                if limits.is_stopped():
                    break
        finally:
            answers.close()
        if self._model.languages != self.spec.languages:
            self.spec = replace(self.spec, languages=self._model.languages)
        return answer

    def _judge_text(self, text: str, answer: RemoteAnswer, request: FillRequest, limits: Limits) -> Verdict:
        """A last line that is not finished is dropped if complete lines precede it."""
        if not text.strip() and not answer.is_finished:
            return Rejection(Reason.UNFINISHED)
        is_cut = _is_cut(text, answer, limits)
        lines = text[: text.rfind("\n") + 1]
        if not answer.is_finished and lines.strip():
            text = lines
        verdict = request.judge(text.encode("utf-8", "surrogatepass"), 0.0)
        return verdict if isinstance(verdict, Rejection) else replace(verdict, is_cut=is_cut)

    def _model_of(self, answer: RemoteAnswer) -> str:
        """The name of the model that answered; some servers report its path, which is nothing for logs and clients."""
        path = PureWindowsPath(answer.model)  # with both kinds of separators
        return (path.stem if path.anchor else answer.model) or self.spec.name

    def _result(
        self,
        answer: RemoteAnswer,
        candidates: tuple[Candidate, ...],
        rejections: tuple[Rejection, ...],
        watch: RequestCosts,
        limits: Limits,
    ) -> FillResult:
        ending = Ending.END
        if _is_cut(answer.text, answer, limits):
            ending = Ending.DEADLINE if limits.is_over() else Ending.TOKENS
        return FillResult(
            model=self._model_of(answer),
            candidates=candidates,
            rejections=rejections,
            steps=answer.steps,
            output_tokens=answer.output_tokens,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=min(answer.cached_tokens, answer.prompt_tokens),
            timings=watch.timings(),
            ending=ending,
        )


def _is_cut(text: str, answer: RemoteAnswer, limits: Limits) -> bool:
    """The answer was not finished, or has further lines than may be shown."""
    return not answer.is_finished or bool(limits.max_lines and text.rstrip("\n").count("\n") >= limits.max_lines)
