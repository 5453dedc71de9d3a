"""How well a GGUF fills held-out lines: the same weights as diffusion and as autoregression, in one run."""

import difflib
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dg_lsp.training.decoding import Way, answer
from dg_lsp.training.questions import Question
from dg_lsp.training.runtime import Runtime
from dg_lsp.training.vocabulary import MIDDLE, PREFIX, SUFFIX

SUFFIX_SHARE = 0.3  # of the prompt's room, as in the product
WAYS = (
    Way(),
    Way(16, 0.9),
    Way(16, 0.7),
    Way(16, 0.5),
    Way(16, 1.0),
    Way(16, 0.9, leftmost=False),
    Way(32, 0.9),
    Way(32, 0.9, leftmost=False),
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


def prompt_ids(runtime: Runtime, question: Question, max_prompt: int) -> list[int]:
    """The FIM prompt of a question, at most `max_prompt` tokens."""
    room = max_prompt - 3
    suffix = runtime.encode(question.text[question.end : question.end + 6 * room])[: int(room * SUFFIX_SHARE)]
    start = max(0, question.start - 6 * room)
    start = question.text.find("\n", start, question.start) + 1 if start else 0
    prefix = runtime.encode(question.text[start : question.start])[-(room - len(suffix)) :]
    return [SUFFIX, *suffix, PREFIX, *prefix, MIDDLE]


def evaluate(
    runtime: Runtime, questions: Sequence[Question], max_prompt: int, ways: Sequence[Way] = WAYS
) -> dict[str, list[Result]]:
    """Answers to every question in every way."""
    results: dict[str, list[Result]] = {way.name: [] for way in ways}
    for question in questions:
        prompt = prompt_ids(runtime, question, max_prompt)
        for way in ways:
            results[way.name].append(_result(runtime, question, prompt, way))
    return results


def _result(runtime: Runtime, question: Question, prompt: list[int], way: Way) -> Result:
    after_prompt = runtime.prefill(prompt)
    started = time.perf_counter()
    found = answer(runtime, after_prompt, len(prompt), way)
    seconds = time.perf_counter() - started
    got = runtime.text(found.ids).split("\n")[0].rstrip()
    return Result(question.kind, got, question.want.rstrip(), found.passes, seconds, len(found.ids))


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
