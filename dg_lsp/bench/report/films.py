"""Films of a few sites: chosen by what came of them, filled once more with somebody looking."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

from dg_lsp.bench.report.record import Film
from dg_lsp.bench.sites import Site
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.engine.engine import Engine, drain
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.result import Frame
from dg_lsp.metrics.attempt import Attempt, has_same_first_line, is_same

NUM_LINES_BEFORE, NUM_LINES_AFTER = 4, 3
_MOST_CHARACTERS = 400
"""Of the text on either side: one line may be a whole file."""


def request_of(site: Site) -> FillRequest:
    """As an editor would ask there, but without a hurry."""
    return FillRequest(site.snapshot, site.offset)


def record_films(
    engine: Engine, sites: Iterable[Site], request: Callable[[Site], FillRequest] = request_of
) -> tuple[Film, ...]:
    """Fills each site once more and keeps every step; sites that took none are left out.

    Where the decoder selection has the choice, a model with a canvas is filmed on it: there is more to see.

    Raises:
        RequestError, BackendError: as the engine's `frames` does.
    """
    films = (record_film(engine, site, _on_canvas(engine, request(site))) for site in sites)
    return tuple(film for film in films if film.frames)


def record_film(engine: Engine, site: Site, request: FillRequest) -> Film:
    """One fill, whatever time it takes: who draws steps is in no hurry."""
    frames: list[Frame] = []
    result = drain(engine.frames(request, deadline=math.inf), frames.append)
    return Film(
        site=site.id,
        want=site.want,
        frames=tuple(frames),
        before=_last_lines(site.prefix),
        after=_first_lines(site.suffix),
        text=result.text,
        decoder=result.decoder.value,
        why=verdict(result.text, site.want),
    )


def choose_sites(sites: Iterable[Site], attempts: Sequence[Attempt]) -> tuple[Site, ...]:
    """Up to five sites that differ in what came of them, the first of each sort: not the best ones."""
    by_id = {site.id: site for site in sites}
    chosen: dict[str, Site] = {}
    for is_wanted in _SORTS:
        for attempt in attempts:
            if attempt.site in by_id and attempt.site not in chosen and is_wanted(attempt):
                chosen[attempt.site] = by_id[attempt.site]
                break
    return tuple(chosen.values())


def verdict(text: str, want: str) -> str:
    """What a fill is an example of."""
    if not text:
        return "nothing shown"
    if is_same(text, want):
        return "exact"
    return "first line right" if has_same_first_line(text, want) else "wrong"


_SORTS: Sequence[Callable[[Attempt], bool]] = (
    lambda attempt: attempt.is_exact and "\n" not in attempt.want,
    lambda attempt: attempt.is_exact and "\n" in attempt.want,
    lambda attempt: attempt.is_first_line and not attempt.is_exact,
    lambda attempt: bool(attempt.shown) and not attempt.is_useful,
    lambda attempt: not attempt.shown,
)


def _on_canvas(engine: Engine, request: FillRequest) -> FillRequest:
    is_free = (request.decoder or engine.settings.decoder) == DecoderName.AUTO
    return dataclasses.replace(request, decoder=DecoderName.DIFFUSION) if is_free and engine.spec.sampling else request


def _last_lines(text: str) -> str:
    return "\n".join(text[-_MOST_CHARACTERS:].split("\n")[-NUM_LINES_BEFORE:])


def _first_lines(text: str) -> str:
    return "\n".join(text[:_MOST_CHARACTERS].split("\n")[: 1 + NUM_LINES_AFTER])
