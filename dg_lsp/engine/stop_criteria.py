"""Limits of a request, and the criteria by which every decoder stops."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from dg_lsp.canvas.layout import OPEN, Layout, TokenIds
from dg_lsp.canvas.prompt_format import GAP_LENGTHS, num_frozen
from dg_lsp.canvas.spec import DecoderName, ModelSpec
from dg_lsp.engine.request import FillRequest, Priority
from dg_lsp.engine.result import Ending
from dg_lsp.errors import RequestError
from dg_lsp.postprocess.text_edits import cut_loops, is_repetitive
from dg_lsp.settings import CompletionSettings


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one request."""

    canvas_length: int  # tokens of a canvas; 0 for a decoder without one
    max_tokens: int
    max_lines: int | None
    num_canvases: int = 1  # canvases that share each pass
    deadline: float = math.inf  # `time.monotonic` seconds at which the result is what is settled
    early_stop_passes: float = math.inf  # passes after which whole lines are enough
    is_raw: bool = False  # the text may repeat itself
    stops: tuple[str, ...] = ()  # texts that end it
    is_stopped: Callable[[], bool] = bool  # the user has stopped it
    max_length: int = 0  # tokens of prompt and text that a canvas may follow; 0: those of the longest prompt of a fill

    def is_over(self) -> bool:
        """The deadline has passed, or the user has stopped it."""
        return time.monotonic() >= self.deadline or self.is_stopped()


def early_stop_ms(request: FillRequest, settings: CompletionSettings, deadline: float) -> float:
    """Milliseconds after which whole lines are enough; infinite for never, and where there is no deadline.

    The setting is for automatic completions: a user who requests some waits for them, and they do not depend on the
    costs that were measured at load.
    """
    wanted = request.early_stop_ms
    if wanted is None:
        wanted = 0.0 if request.priority is Priority.INVOKED else settings.early_stop_ms
    return wanted if wanted and deadline < math.inf else math.inf


def canvas_length(
    spec: ModelSpec,
    max_lines: int | None,
    layout: Layout = OPEN,
    decoder: DecoderName = DecoderName.DIFFUSION,
) -> int:
    """Tokens of a canvas: the spec's, or else the model's shortest for so many lines and the frozen tokens.

    Raises:
        RequestError: it has no room for a fill.
    """
    if spec.block_length:
        return spec.block_length
    wanted = spec.canvas_length
    frozen = num_frozen(layout)
    if 0 < wanted <= frozen:
        raise RequestError(
            f"canvas_length {wanted} has no room beside {frozen} tokens that are known; choose at least {frozen + 4}"
        )
    if decoder is DecoderName.INFILL:
        least = frozen + (spec.gap_lengths or GAP_LENGTHS)[-1]
    else:  # an open canvas continues in the next one; frozen tokens make a short one shorter
        least = frozen + (32 if max_lines != 1 else 16 if frozen else 8)
    return wanted or min((n for n in spec.canvas_lengths if n >= least), default=spec.longest_block)


@dataclass(frozen=True, slots=True)
class StopCriteria:
    """When one request's fill is complete, and how much of it can be shown."""

    decode: Callable[[TokenIds], bytes]
    limits: Limits
    stop: str = ""  # the fill ends before a line that begins with it, unless it is empty
    removed: bytes = b""  # see `Layout.removed`

    def is_spelled(self, ids: TokenIds) -> bool:
        """The tokens go as far as the cursor."""
        return not self.removed or self.decode(ids).startswith(self.removed)

    def fill(self, ids: TokenIds) -> bytes:
        """The text after the cursor; none where the tokens do not begin with the text before it."""
        return self.decode(ids)[len(self.removed) :] if self.is_spelled(ids) else b""

    def is_met(self, ids: TokenIds, *, is_ended: bool, num_passes: int) -> bool:
        """The fill has ended, is long enough after so many passes, or repeats itself."""
        if is_ended or self._is_full(ids):
            return True
        text = self.fill(ids).decode("utf-8", "replace")
        if self.has_stop(text):
            return True
        if self.limits.is_raw:
            return False
        is_early = num_passes >= self.limits.early_stop_passes
        return meets_stop_criteria(text, self.limits, is_early=is_early) or self._find_stop(text) is not None

    def has_stop(self, text: str) -> bool:
        """The text has one of the texts that end it."""
        return any(stop in text for stop in self.limits.stops if stop)

    def ending(self, ids: TokenIds, *, is_ended: bool, num_passes: int) -> Ending:
        """Why a fill stopped that is now this. With all its lines it might go on, unless its end is settled too."""
        text, max_lines = self.fill(ids).decode("utf-8", "replace"), self.limits.max_lines
        if self.has_stop(text):
            return Ending.STOP
        if self._find_stop(text) is not None:
            return Ending.END
        has_more = max_lines is not None and text.strip("\n").count("\n") >= max_lines
        if is_ended and not has_more:
            return Ending.END
        if has_more or self._is_full(ids) or (max_lines is not None and text.count("\n") >= max_lines):
            return Ending.TOKENS
        if self.is_met(ids, is_ended=False, num_passes=0):  # it repeats itself
            return Ending.END
        is_late = num_passes >= self.limits.early_stop_passes or self.limits.is_over()
        return Ending.DEADLINE if is_late else Ending.CONTEXT

    def shown_bytes(self, ids: TokenIds, *, is_ended: bool) -> bytes:
        """The part of the fill to judge, without a last line that was broken off after whole ones."""
        fill = self.fill(ids)
        end = self._find_stop(fill.decode("utf-8", "surrogateescape"))
        if end is not None:
            return fill.decode("utf-8", "surrogateescape")[:end].encode("utf-8", "surrogateescape")
        whole = fill[: fill.rfind(b"\n") + 1]
        if is_ended or not whole.strip() or _loops(fill.decode("utf-8", "replace"), fill.count(b"\n")):
            return fill
        return whole

    def num_shown(self, ids: TokenIds) -> int:
        """How many tokens are on the lines that may be shown, the line end after them left out."""
        if self.limits.max_lines is None:
            return len(ids)
        num_ends = 0
        for i in range(len(ids)):
            text = self.decode(ids[i : i + 1])
            num_ends += text.count(b"\n")
            if num_ends >= self.limits.max_lines:
                return i + (not text.startswith(b"\n"))
        return len(ids)

    def _is_full(self, ids: TokenIds) -> bool:
        """The tokens after the cursor are as many as may be."""
        num_tokens, limit = len(ids), self.limits.max_tokens
        if num_tokens < limit or not self.removed:
            return num_tokens >= limit
        sizes = (len(self.decode(ids[: at + 1])) for at in range(num_tokens))
        num_before = next((at for at, size in enumerate(sizes) if size > len(self.removed)), num_tokens)
        return num_tokens - num_before >= limit

    def _find_stop(self, text: str) -> int | None:
        """Offset of the line end before the first line that begins with the stop."""
        if not self.stop:
            return None
        at = f"\n{text}".find(f"\n{self.stop}")
        return max(0, at - 1) if at >= 0 else None


def meets_stop_criteria(text: str, limits: Limits, *, is_early: bool) -> bool:
    """The text has as many lines as may be shown, or whole ones if `is_early`, or it repeats itself."""
    num_ends = text.count("\n")
    if _loops(text, num_ends):
        return True
    if not num_ends:
        return False
    has_all = limits.max_lines is not None and num_ends >= limits.max_lines
    return has_all or (is_early and bool(text[: text.rindex("\n")].strip()))


def _loops(text: str, num_ends: int) -> bool:
    if num_ends > 1 and cut_loops(text) != text:
        return True
    # five copies of three or more characters have one of these pieces four times; the whole search is slow
    for at in range(0, len(text) - 2, 13):
        if text.count(text[at : at + 3]) >= 4:
            return is_repetitive(text)
    return False
