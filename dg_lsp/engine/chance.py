"""How likely a fill is what the user wants, from what the model thought of its tokens. Knows no place and no threshold.

The product of the probabilities of the first line's tokens was right about as often as it says at 859 held-out places
(docs/benchmarks.md); the mean that ranks candidates is not, because it forgives one wild guess in a long line.
"""

import numpy as np

from dg_lsp.canvas.plan import TokenIds
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.diffusion.denoiser import Floats


def chance_of(ids: TokenIds, confidence: Floats, tokenizer: Tokenizer) -> float:
    """Probability from 0 to 1 that the first line is right.

    Args:
        ids: shape (N,), the fill without its end token.
        confidence: shape (N,) or (N + 1,): of each token when it was committed, and of the end token.
        tokenizer: tells where the first line with text in it ends.
    """
    length = _first_line(ids, tokenizer)
    probabilities = confidence[: length if length is not None else len(confidence)]
    return float(np.prod(np.clip(probabilities, 1e-9, 1.0), dtype=np.float64))


def _first_line(ids: TokenIds, tokenizer: Tokenizer) -> int | None:
    """Tokens up to the line end that follows the first text, that one included; None where there is none."""
    has_text = False
    for number in range(len(ids)):
        piece = tokenizer.decode(ids[number : number + 1])
        body, end, _ = piece.partition(b"\n") if has_text else piece.lstrip().partition(b"\n")
        has_text = has_text or bool(body.strip())
        if has_text and end:
            return number + 1
    return None
