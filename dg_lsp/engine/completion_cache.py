"""Finished fills that still hold: what was typed since is what they begin with. Knows texts, no model.

Typing through ghost text is the commonest thing that happens to it; the model would only say the rest again, or worse,
something else.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace

from dg_lsp.context.document import Snapshot
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.result import FillResult, Timings
from dg_lsp.postprocess.validate import Candidate

CAPACITY = 128
"""Fills kept, over all documents; the oldest go first."""
SEEN = 4000
"""Characters on each side of the cursor that have to be the same: what a prompt shows of a buffer, and more."""
_CLOSERS = {"(": ")", "[": "]", "{": "}", '"': '"', "'": "'"}
_AT_ONCE = Timings(prefill=0.0, denoise=0.0, postprocess=0.0, total=0.0, predict=0.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """A fill, and the text around it when it was asked for."""

    asked: tuple[object, ...]
    """What else the fill depended on."""
    offset: int
    before: str
    after: str
    num_candidates: int
    result: FillResult


class CompletionCache:
    """A bounded store of fills. Not thread-safe: `worker` guards it."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._number = 0

    def keep(self, request: FillRequest, result: FillResult) -> None:
        """Remembers a fill; one without candidates says nothing of what the next try would give."""
        if not result.candidates:
            return
        text, offset = request.snapshot.text, request.offset
        before, after = text[max(0, offset - SEEN) : offset], text[offset : offset + SEEN]
        self._number += 1
        self._kept[self._number] = _Kept(_asked(request), offset, before, after, request.num_candidates, result)
        while len(self._kept) > self._capacity:
            self._kept.popitem(last=False)

    def find(self, request: FillRequest) -> FillResult | None:
        """What is left of the newest fill that the buffer has followed since, or None.

        The result's candidates begin at the request's cursor; its passes and times are 0, for nothing was computed.
        """
        asked = _asked(request)
        for number in reversed(self._kept):
            kept = self._kept[number]
            if kept.asked != asked or kept.num_candidates < request.num_candidates:
                continue
            if left := _left(kept, request.snapshot, request.offset):
                self._kept.move_to_end(number)
                return replace(
                    kept.result,
                    candidates=left[: request.num_candidates],
                    rejections=(),
                    steps=0,
                    tokens_per_forward=0.0,
                    cached_tokens=kept.result.prompt_tokens,
                    timings=_AT_ONCE,
                    is_cached=True,
                )
        return None


def _asked(request: FillRequest) -> tuple[object, ...]:
    return (
        request.snapshot.uri,
        request.snapshot.language,
        request.max_lines,
        request.suffix_lines,
        request.plan,
        request.seed,
    )


def _left(kept: _Kept, snapshot: Snapshot, offset: int) -> tuple[Candidate, ...]:
    """The rests of the candidates that the buffer has followed so far; none when it went elsewhere."""
    text = snapshot.text
    # lengths first: most fills of a session fail here, and comparing texts costs
    num_typed = offset - kept.offset
    if num_typed < 0 or num_typed >= max(len(one.text) for one in kept.result.candidates):
        return ()
    if text[max(0, kept.offset - SEEN) : kept.offset] != kept.before:
        return ()
    typed = text[kept.offset : offset]
    closer = _auto_closed(typed, text, offset)
    if text[offset : offset + SEEN] == kept.after:
        closer = ""
    elif not closer or text[offset + 1 : offset + 1 + SEEN] != kept.after:
        return ()
    rests = (replace(one, text=one.text[num_typed:]) for one in kept.result.candidates if one.text.startswith(typed))
    if closer:
        rests = (replace(one, text=one.text[:-1]) for one in rests if _ends_at(one.text, closer))
    return tuple(one for one in rests if one.text.strip())


def _auto_closed(typed: str, text: str, offset: int) -> str:
    """The closing character that an editor has put after the cursor when its opener was typed, or nothing."""
    after = text[offset : offset + 1]
    return after if after and any(_CLOSERS.get(char) == after for char in typed) else ""


def _ends_at(rest: str, closer: str) -> bool:
    """The rest of one line ends with the closer that is there already."""
    return rest.endswith(closer) and "\n" not in rest and "\r" not in rest
