"""Films: some fills of a benchmark, repeated and recorded step by step."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dg_lsp.bench.dataset import TestCase
from dg_lsp.bench.metrics import Attempt, first_lines_match, texts_match
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.engine.engine import Engine, drain
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.result import Cell, Frame

MASK = "·"
BOUNDS = (0.2, 0.5, 0.7, 0.9, 0.99)
"""Confidences at which the colour changes; a draft below the first one is shown as a mask."""
NUM_LINES_BEFORE, NUM_LINES_AFTER = 4, 3
_MAX_CONTEXT = 400
"""Characters on either side of the cursor."""


@dataclass(frozen=True, slots=True)
class FilmStep:
    """The fill after one step."""

    caption: str
    settled: str
    """Text of earlier canvases."""
    tokens: tuple[tuple[str, str], ...]
    """CSS classes and text of each position before the first end token."""


@dataclass(frozen=True, slots=True)
class Film:
    """One fill, step by step."""

    case: str
    reference: str
    frames: tuple[Frame, ...]
    before: str = ""
    """Some text before the cursor."""
    after: str = ""
    """Some text after the cursor."""
    text: str = ""
    """The final text; empty if nothing was shown."""
    decoder: str = ""
    outcome: str = ""

    def steps(self) -> Iterator[FilmStep]:
        """All steps, ready for display."""
        settled, previous = "", Frame(0, 0, (), "")
        for frame in self.frames:
            if previous.block != frame.block:
                settled, previous = previous.settled_text, Frame(frame.block, 0, (), "")
            old = [cell.is_committed for cell in previous.cells]
            tokens = [_token(cell, is_new=not any(old[i : i + 1])) for i, cell in enumerate(frame.cells)]
            end = next((i for i, cell in enumerate(frame.cells) if cell.is_end), len(tokens))
            accepted = sum(cell.is_committed for cell in frame.cells)
            caption = f"Step {frame.step} of {self.frames[-1].step}: {accepted} of {len(tokens)} positions accepted"
            yield FilmStep(caption, settled, tuple(tokens[:end]))
            previous = frame


def legend() -> list[tuple[str, str, str]]:
    """CSS classes, sample and meaning of every colour and style."""
    bounds = enumerate(pairwise((0.0, *BOUNDS, 1.0)))
    ramp = [(f"c{i}", "a" if i else MASK, f"{100 * low:.0f}–{100 * high:.0f} %") for i, (low, high) in bounds]
    return [*ramp, ("c2", "draft", "not accepted"), ("c4 k n", "token", "accepted now"), ("c4 k", "token", "earlier")]


def record_films(
    engine: Engine, cases: Iterable[TestCase], request: Callable[[TestCase], FillRequest]
) -> tuple[Film, ...]:
    """Repeats the fills without a deadline; fills without steps are left out.

    If the decoder is free, a model with a canvas is recorded on it, because there is more to see.

    Raises:
        RequestError, BackendError: as `Engine.frames` does.
    """
    films = []
    for case in cases:
        query, frames = request(case), list[Frame]()
        if (query.decoder or engine.settings.decoder) == DecoderName.AUTO and engine.spec.sampling:
            query = dataclasses.replace(query, decoder=DecoderName.DIFFUSION)
        result = drain(engine.frames(query, deadline=math.inf), frames.append)
        before = "\n".join(case.prefix[-_MAX_CONTEXT:].split("\n")[-NUM_LINES_BEFORE:])
        after = "\n".join(case.suffix[:_MAX_CONTEXT].split("\n")[: 1 + NUM_LINES_AFTER])
        outcome = _outcome(result.text, case.reference)
        film = Film(case.id, case.reference, tuple(frames), before, after, result.text, result.decoder.value, outcome)
        films += [film] if frames else []
    return tuple(films)


def choose_cases(cases: Iterable[TestCase], attempts: Sequence[Attempt]) -> tuple[TestCase, ...]:
    """Up to five cases with different outcomes: the first of each sort, not the best."""
    by_id = {case.id: case for case in cases}
    chosen: dict[str, TestCase] = {}
    for is_wanted in _SORTS:
        for attempt in attempts:
            if attempt.case in by_id and attempt.case not in chosen and is_wanted(attempt):
                chosen[attempt.case] = by_id[attempt.case]
                break
    return tuple(chosen.values())


_SORTS: Sequence[Callable[[Attempt], bool]] = (
    lambda attempt: attempt.is_exact and "\n" not in attempt.reference,
    lambda attempt: attempt.is_exact and "\n" in attempt.reference,
    lambda attempt: attempt.is_first_line and not attempt.is_exact,
    lambda attempt: bool(attempt.shown) and not attempt.is_useful,
    lambda attempt: not attempt.shown,
)


def _outcome(text: str, reference: str) -> str:
    if not text:
        return "nothing shown"
    if texts_match(text, reference):
        return "exact"
    return "first line right" if first_lines_match(text, reference) else "wrong"


def _token(cell: Cell, *, is_new: bool) -> tuple[str, str]:
    """CSS classes (colour of the confidence, `k` for accepted, `n` for accepted in this step) and text."""
    style = f"c{sum(cell.confidence >= bound for bound in BOUNDS)}"
    if cell.is_committed:
        style += " k n" if is_new else " k"
    return style, cell.text if cell.is_committed or cell.confidence >= BOUNDS[0] else MASK
