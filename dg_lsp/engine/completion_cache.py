"""Finished fills that stay valid while the user types them. Works on texts, without the model."""

from dataclasses import dataclass, replace

from dg_lsp.context.document import Snapshot
from dg_lsp.context.window import CHARS_PER_TOKEN
from dg_lsp.engine.request import NO_TIME, Ending, FillRequest, FillResult
from dg_lsp.postprocess.validate import Candidate

CAPACITY = 128  # fills of all documents together; the oldest go first
CONTEXT_CHARS = 4096 * CHARS_PER_TOKEN
"""Characters on each side of the cursor that must be the same: as many as the longest prompt of a known model shows."""
_CLOSERS = {"(": ")", "[": "]", "{": "}", '"': '"', "'": "'"}


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    key: tuple[object, ...]  # what else the fill depends on
    offset: int
    before: str
    after: str
    num_candidates: int
    is_requested: bool  # then it was checked more strictly
    result: FillResult


class CompletionCache:
    """A bounded store of fills."""

    _entries: tuple[_Entry, ...] = ()

    def keep(self, request: FillRequest, result: FillResult) -> None:
        """Stores a fill that has candidates, shown or hidden. For one thread, while any thread may call `find`."""
        if not (result.candidates or result.hidden):
            return
        text = request.snapshot.text
        offset = request.offset
        entry = _Entry(
            _key(request),
            offset,
            before=text[max(0, offset - CONTEXT_CHARS) : offset],
            after=text[offset : offset + CONTEXT_CHARS],
            num_candidates=request.num_candidates,
            is_requested=request.is_requested,
            result=result,
        )
        self._entries = (*self._entries, entry)[-CAPACITY:]

    def find(self, request: FillRequest, min_confidence: float | None = None) -> FillResult | None:
        """The rest of the newest fill whose beginning the user has typed since, or None.

        Its candidates begin at the request's cursor; see `FillResult.confident` for `min_confidence`. Its steps and
        times are 0, since nothing is computed.
        """
        key = _key(request)
        for entry in reversed(self._entries):
            if entry.key != key or entry.num_candidates < request.num_candidates:
                continue
            if request.is_requested and not entry.is_requested:
                continue
            if request.deadline_ms is not None and entry.result.ending is Ending.DEADLINE:
                continue  # it may have more time than the one that was cut
            if rests := _rests(entry, request.snapshot, request.offset):
                known = replace(
                    entry.result,
                    candidates=rests,
                    hidden=(),
                    rejections=(),
                    steps=0,
                    num_blocks=0,
                    canvas_tokens=0,
                    output_tokens=0,
                    cached_tokens=entry.result.prompt_tokens,
                    timings=NO_TIME,
                    is_cached=True,
                ).confident(min_confidence)
                return replace(known, candidates=known.candidates[: request.num_candidates])
        return None


def _key(request: FillRequest) -> tuple[object, ...]:
    document = request.client, request.snapshot.uri, request.snapshot.language
    return *document, request.max_lines, request.max_tokens, request.decoder, request.seed, request.sampler


def _rests(entry: _Entry, snapshot: Snapshot, offset: int) -> tuple[Candidate, ...]:
    """The rests of the candidates that begin with what was typed; none where the text around differs."""
    text = snapshot.text
    results = (*entry.result.candidates, *entry.result.hidden)
    candidates = [candidate for candidate in results if not candidate.is_beginning]
    # lengths first: most entries fail here, and comparing texts takes longer
    num_typed = offset - entry.offset
    if num_typed < 0 or num_typed >= max(len(candidate.text) for candidate in candidates):
        return ()
    if text[max(0, entry.offset - CONTEXT_CHARS) : entry.offset] != entry.before:
        return ()
    typed = text[entry.offset : offset]
    closer = _auto_closed(typed, text, offset)
    if text[offset : offset + CONTEXT_CHARS] == entry.after:
        closer = ""
    elif not closer or text[offset + 1 : offset + 1 + CONTEXT_CHARS] != entry.after:
        return ()
    matching = (candidate for candidate in candidates if candidate.text.startswith(typed))
    rests = (candidate.rest(num_typed) for candidate in matching)
    if closer:
        lines = (rest for rest in rests if "\n" not in rest.text and "\r" not in rest.text)
        rests = (replace(line, text=line.text[:-1]) for line in lines if line.text.endswith(closer))
    return tuple(rest for rest in rests if rest.text.strip())


def _auto_closed(typed: str, text: str, offset: int) -> str:
    """The closing character that the editor put after the cursor when its opener was typed, or nothing."""
    after = text[offset : offset + 1]
    return after if after and any(_CLOSERS.get(char) == after for char in typed) else ""
