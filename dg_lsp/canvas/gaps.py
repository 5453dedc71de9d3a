"""Layouts with several gaps: the text between the gaps is frozen in one canvas, so that all gaps settle together.

What ends a gap depends on how the model was trained:

- `fim`: the prompt has the text before the first gap and after the last one, as for a fill, and the canvas is a middle
  with known parts, closed by a frozen end token.
- `infill`: the text before the first gap and after the last one is frozen in the canvas, as for one gap.
- `instruct`: the question shows the lines with marked gaps, and the answer is these lines, frozen but for the gaps.

In each, an end token in a gap ends that gap only. With mask noise it is removed with the masks behind it, so the frozen
text follows the fill as it will in the buffer. With uniform noise a canvas keeps its length, and the rest is left out.
"""

from dataclasses import dataclass, replace

import numpy as np

from dg_lsp.canvas.layout import Canvas, Flags, Layout, TokenIds, Tokenizer, noise, token_ids
from dg_lsp.canvas.prompt_format import (
    CODE_CLOSING,
    GAP_LENGTHS,
    PASS_TOKENS,
    layout_of,
    num_frozen,
    rewrite_layout,
    template_words,
)
from dg_lsp.canvas.spec import ModelSpec, PromptFormat
from dg_lsp.context.window import Prompt

MIN_GAP = 8  # tokens that each gap of a canvas has room for
MARK = "<GAP>"
INSTRUCTION = f"replace each {MARK} by the code that is missing there, and change nothing else."


@dataclass(frozen=True, slots=True, eq=False)
class GapsLayout:
    """Prompt, then a head, gaps with frozen text between them, and a tail."""

    layout: Layout
    between: tuple[TokenIds, ...]  # one less than gaps, none empty

    @property
    def num_gaps(self) -> int:
        """Number of gaps, at least 1."""
        return len(self.between) + 1

    @property
    def _num_frozen(self) -> int:
        """Frozen tokens, at least."""
        return num_frozen(self.layout) + sum(map(len, self.between))

    def fits(self, spec: ModelSpec) -> bool:
        """Whether the model's longest canvas has room for the frozen text and a usual length of each gap."""
        return self._num_frozen + self.num_gaps * MIN_GAP <= spec.longest_block

    def sizes(self, spec: ModelSpec) -> tuple[int, ...]:
        """Lengths of the gaps to try in one pass, ascending: those that fit into the model's longest canvas."""
        most = max(1, (spec.longest_block - self._num_frozen) // self.num_gaps)
        sizes = tuple(size for size in spec.gap_lengths or GAP_LENGTHS if size <= most) or (most,)
        while len(sizes) > 1 and sum(self._num_frozen + self.num_gaps * size for size in sizes) > PASS_TOKENS:
            sizes = sizes[:-1]
        return sizes

    def canvases(self, spec: ModelSpec, rng: np.random.Generator) -> list[Canvas]:
        """A canvas for each length of the gaps; the tail takes the room that is left in a pass."""
        sizes = self.sizes(spec)
        lengths = [self._num_frozen + self.num_gaps * size for size in sizes]
        # one canvas alone may be as long as the model's longest
        spare = (PASS_TOKENS - sum(lengths)) // len(sizes) if len(sizes) > 1 else spec.longest_block
        return [
            self._canvas(size, min(spec.longest_block, length + spare), spec, rng)
            for size, length in zip(sizes, lengths, strict=True)
        ]

    def _canvas(self, size: int, length: int, spec: ModelSpec, rng: np.random.Generator) -> Canvas:
        """A canvas of at most `length` tokens with gaps of `size` tokens."""
        num_known = len(self.layout.head_ids) + sum(map(len, self.between))
        tail = self.layout.tail_ids[: max(0, length - num_known - self.num_gaps * size)]
        parts, flags = [self.layout.head_ids], [np.ones(len(self.layout.head_ids), np.bool_)]
        for known in (*self.between, tail):
            parts += [noise(spec, size, rng), known]
            flags.append(np.repeat([False, True], [size, len(known)]))
        return Canvas(self.layout.prompt_ids, token_ids(np.concatenate(parts)), np.concatenate(flags))

    def gaps(self, frozen: Flags) -> list[slice]:
        """The positions of the gaps in a canvas that may have been resized, by the frozen tokens before them."""
        num_before = np.cumsum([len(self.layout.head_ids), *map(len, self.between)])
        num_frozen = np.cumsum(frozen)
        starts = np.searchsorted(num_frozen, num_before, side="left") + (num_before > 0)
        ends = np.searchsorted(num_frozen, num_before, side="right")
        return [slice(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]


def gaps_layout(prompt: Prompt, between: tuple[str, ...], tokenizer: Tokenizer, spec: ModelSpec) -> GapsLayout:
    """The layout of gaps with these texts between them; `prompt` has what is before the first and after the last.

    Raises:
        ModelUnsupportedError: see `layout_of`.
    """
    encoded = tuple(map(tokenizer.encode, between))
    if spec.prompt_format is PromptFormat.INSTRUCT:
        return GapsLayout(_answer_layout(prompt, between, tokenizer, spec), encoded)
    # no causal pass precedes the canvas, so its prompt goes as far as the first gap
    layout = layout_of(prompt, tokenizer, replace(spec, has_causal_head=False), spec.max_prompt_tokens)
    if spec.prompt_format is PromptFormat.FIM:
        layout = replace(layout, tail_ids=token_ids(spec.end_ids[:1]))
    return GapsLayout(layout, encoded)


def _answer_layout(prompt: Prompt, between: tuple[str, ...], tokenizer: Tokenizer, spec: ModelSpec) -> Layout:
    """The question shows the lines of the gaps; the answer is frozen around the first and the last gap."""
    cut = prompt.prefix.rfind("\n") + 1
    opening, (rest, end, below) = prompt.prefix[cut:], prompt.suffix.partition("\n")
    selection = opening + MARK + "".join(text + MARK for text in between) + rest + end
    asked = replace(prompt, prefix=prompt.prefix[:cut], suffix=below, selection=selection, instruction=INSTRUCTION)
    layout = rewrite_layout(asked, tokenizer, spec, spec.max_prompt_tokens)
    head = tokenizer.encode(opening.lstrip(" "))  # the answer begins with the indentation
    tail = tokenizer.encode(rest + CODE_CLOSING.format(**template_words(asked)))
    return replace(
        layout,
        head_ids=token_ids(np.concatenate([layout.head_ids, head])),
        tail_ids=token_ids(np.concatenate([tail, spec.end_ids[:1]])),
    )
