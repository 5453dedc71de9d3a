"""When a draft says enough, whatever plan makes it; and how much of it is fit to be shown."""

from dg_lsp.canvas.plan import TokenIds
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.engine.draft import Draft
from dg_lsp.engine.limits import Limits
from dg_lsp.postprocess.trim import cut_loops, goes_in_circles


class Enough:
    """One request's rule."""

    def __init__(self, tokenizer: Tokenizer, limits: Limits, stop: str = "") -> None:
        """A line that begins with `stop`, unless empty, is no part of the fill."""
        self._tokenizer = tokenizer
        self._limits = limits
        self._stop = stop

    def is_met(self, draft: Draft) -> bool:
        """The fill has ended, has the lines that may be shown, or whole ones and took long, or goes in circles."""
        if draft.is_ended or len(draft.ids) >= self._limits.max_tokens:
            return True
        text = self._tokenizer.decode(draft.ids).decode("utf-8", "replace")
        return says_enough(text, self._limits) or self._stop_at(text) is not None

    def fill(self, draft: Draft) -> bytes:
        """What may be judged of the draft: a last line that was broken off is left out where whole ones precede it."""
        fill = self._tokenizer.decode(draft.ids)
        end = self._stop_at(fill.decode("utf-8", "surrogateescape"))
        if end is not None:
            return fill.decode("utf-8", "surrogateescape")[:end].encode("utf-8", "surrogateescape")
        whole = fill[: fill.rfind(b"\n") + 1]
        if draft.is_ended or not whole.strip() or _loops(fill.decode("utf-8", "replace")):
            return fill
        return whole

    def num_shown(self, ids: TokenIds) -> int:
        """How many of a fill's tokens are on the lines that may be shown; the line end after them is none of these."""
        if self._limits.max_lines is None:
            return len(ids)
        num_ends = 0
        for i in range(len(ids)):
            text = self._tokenizer.decode(ids[i : i + 1])
            num_ends += text.count(b"\n")
            if num_ends >= self._limits.max_lines:
                return i + (not text.startswith(b"\n"))
        return len(ids)

    def _stop_at(self, text: str) -> int | None:
        """Where the fill ends because a line begins as a stop does."""
        if not self._stop:
            return None
        at = f"\n{text}".find(f"\n{self._stop}")
        return max(0, at - 1) if at >= 0 else None


def says_enough(text: str, limits: Limits) -> bool:
    """It has the lines that may be shown, or whole ones and took long, or goes in circles."""
    if _loops(text):
        return True
    whole, line_end, _ = text.rpartition("\n")
    if not line_end:
        return False
    has_all = limits.max_lines is not None and text.count("\n") >= limits.max_lines
    return has_all or (bool(whole.strip()) and not limits.is_patient())


def _loops(text: str) -> bool:
    return goes_in_circles(text) or cut_loops(text) != text
