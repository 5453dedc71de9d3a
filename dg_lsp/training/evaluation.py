"""How well a GGUF fills held-out lines: the same weights by every decoder, in one run.

Prompt, canvas and decoders are the product's own; nothing is postprocessed.
"""

import difflib
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dg_lsp.canvas.fim import SUFFIX_SHARE, fim_layout
from dg_lsp.canvas.layout import Layout, TokenIds
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.context.document import Snapshot
from dg_lsp.context.window import CHARS_PER_TOKEN, prompt_at
from dg_lsp.diffusion.denoiser import Denoiser
from dg_lsp.engine.decoders.base import DecodeTask
from dg_lsp.engine.decoders.run import new_decoder
from dg_lsp.engine.engine import drain, with_overrides
from dg_lsp.engine.stop_criteria import Limits, StopCriteria
from dg_lsp.training.questions import Question

MAX_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Way:
    """How an answer is made; `diffusion` 0 for a decoder without one."""

    decoder: DecoderName = DecoderName.AUTOREGRESSIVE
    canvas: int = 0
    threshold: float = 0.9
    order: str = "leftmost"
    num_canvases: int = 1

    @property
    def name(self) -> str:
        """As in the table."""
        if not self.canvas:
            return f"{self.decoder}"
        canvas = f"{self.num_canvases} x {self.canvas}" if self.num_canvases > 1 else self.canvas
        return f"{self.decoder} {canvas}, threshold {self.threshold:g}, {self.order}"


WAYS = (
    Way(),
    Way(DecoderName.PROMPT_LOOKUP),
    Way(DecoderName.SPECULATIVE, 16),
    Way(DecoderName.DIFFUSION, 16, num_canvases=2),
    Way(DecoderName.DIFFUSION, 16),
    Way(DecoderName.DIFFUSION, 16, 0.7),
    Way(DecoderName.DIFFUSION, 16, 0.5),
    Way(DecoderName.DIFFUSION, 16, 1.0),
    Way(DecoderName.DIFFUSION, 16, 0.9, "confident"),
    Way(DecoderName.DIFFUSION, 32),
    Way(DecoderName.DIFFUSION, 32, 0.9, "confident"),
)


@dataclass(frozen=True, slots=True)
class Result:
    """One answer beside the right one; `seconds` leave the prompt's prefill out."""

    kind: str
    got: str
    want: str
    passes: int
    seconds: float
    tokens: int

    @property
    def is_exact(self) -> bool:
        """The whole first line equals."""
        return self.got == self.want

    @property
    def is_first_word_right(self) -> bool:
        """Up to the first blank."""
        return self.got.split()[:1] == self.want.split()[:1]

    @property
    def similarity(self) -> float:
        """difflib's ratio, 0 to 1."""
        return difflib.SequenceMatcher(None, self.got, self.want, autojunk=False).ratio()


@dataclass(frozen=True, slots=True)
class Answer:
    """What was generated, and in how many forward passes after the prompt."""

    ids: TokenIds
    passes: int
    seconds: float


class Fillers:
    """One model, all ways of using it."""

    def __init__(self, denoiser: Denoiser, tokenizer: Tokenizer) -> None:
        self._denoiser = denoiser
        self._tokenizer = tokenizer

    def layout(self, question: Question) -> Layout:
        """The layout that the product would make of the file without the middle."""
        spec = self._denoiser.spec
        text = question.text[: question.start] + question.text[question.end :]
        chars = spec.max_prompt_tokens * CHARS_PER_TOKEN
        snapshot = Snapshot(f"file:///{question.package}.py", 0, text)
        prompt = prompt_at(snapshot, question.start, prefix_chars=chars, suffix_chars=int(chars * SUFFIX_SHARE))
        return fim_layout(prompt, self._tokenizer, spec, spec.max_prompt_tokens)

    def answer(self, question: Question, way: Way) -> Answer:
        """One line; the prompt's prefill is not timed."""
        layout = self.layout(question)
        limits = Limits(way.canvas, MAX_TOKENS, max_lines=1, num_canvases=way.num_canvases)
        task = DecodeTask(self._denoiser, 0, limits, StopCriteria(self._tokenizer, limits), np.random.default_rng(0))
        sampling = with_overrides(self._denoiser.spec.sampling, way.threshold, way.order)
        decoder = new_decoder(way.decoder, task, sampling)
        decoder.prefill(layout.prompt_ids, 0)
        started = time.perf_counter()
        drafts = drain(decoder.run(layout))
        best = max(drafts, key=lambda draft: draft.score)
        return Answer(best.ids, decoder.num_passes, time.perf_counter() - started)

    def first_line(self, ids: TokenIds) -> str:
        """The text up to its first line end, without trailing blanks."""
        return self._tokenizer.decode(ids).decode("utf-8", "replace").split("\n")[0].rstrip()


def evaluate(fillers: Fillers, questions: Sequence[Question], ways: Sequence[Way] = WAYS) -> dict[str, list[Result]]:
    """Answers to every question in every way."""
    return {way.name: [_result(fillers, question, way) for question in questions] for way in ways}


def _result(fillers: Fillers, question: Question, way: Way) -> Result:
    answer = fillers.answer(question, way)
    got = fillers.first_line(answer.ids)
    return Result(question.kind, got, question.want.rstrip(), answer.passes, answer.seconds, len(answer.ids))


def table(results: dict[str, list[Result]]) -> str:
    """A Markdown table; shares in percent, times in milliseconds."""
    lines = [
        "| way | exact | line end | whole line | first word | similarity | empty | passes | tokens | ms p50 | ms p95 |",
        "|---" * 11 + "|",
    ]
    for way, rows in results.items():
        milliseconds = [1e3 * row.seconds for row in rows]
        cells = [
            _percent([row.is_exact for row in rows]),
            _percent([row.is_exact for row in rows if row.kind == "line end"]),
            _percent([row.is_exact for row in rows if row.kind == "whole line"]),
            _percent([row.is_first_word_right for row in rows]),
            _percent([row.similarity for row in rows]),
            _percent([not row.got for row in rows]),
            f"{np.mean([row.passes for row in rows]):.1f}",
            f"{np.mean([row.tokens for row in rows]):.1f}",
            f"{np.percentile(milliseconds, 50):.1f}",
            f"{np.percentile(milliseconds, 95):.1f}",
        ]
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _percent(values: Sequence[float | bool]) -> str:
    return f"{100 * float(np.mean(values)):.1f}" if len(values) else "-"
