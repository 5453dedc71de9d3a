"""Denoising steps as a person may look at them: made only for who looks, for a frame costs more than its step."""

from dg_lsp.canvas.plan import TokenIds, among, token_ids
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.engine.filling import Progress
from dg_lsp.engine.result import Cell, Frame


class Framer:
    """Turns progress into frames."""

    def __init__(self, tokenizer: Tokenizer, spec: ModelSpec) -> None:
        self._tokenizer = tokenizer
        self._end_ids = token_ids(spec.end_ids)

    def frame(self, progress: Progress) -> Frame:
        """The canvas position by position, and the text that is settled."""
        step = progress.step
        ends = among(step.draft_ids, self._end_ids)
        cells = tuple(
            Cell(
                self._text(step.draft_ids[i : i + 1]), float(step.confidence[i]), bool(step.committed[i]), bool(ends[i])
            )
            for i in range(len(step.draft_ids))
        )
        return Frame(progress.block, progress.number, cells, self._text(progress.draft.ids))

    def _text(self, ids: TokenIds) -> str:
        return self._tokenizer.decode(ids).decode("utf-8", "replace")
