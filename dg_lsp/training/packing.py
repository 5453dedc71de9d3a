"""The corpus as pieces small enough for one transfer each, and a work folder again. Knows bytes and text.

Text travels, not tokens: it is 7% larger, but middles are cut in characters and the vocabulary may change.
"""

import shutil
from pathlib import Path

from dg_lsp.training.pieces import split, whole
from dg_lsp.training.prepare import SPLITS, read_texts, write_tokens
from dg_lsp.training.tokenizer import load_tokenizer

MAX_PIECE = 60 * 2**20  # bytes; a transfer takes 64 MiB
TOKENIZER = "tokenizer.json"


def pack(root: Path, folder: Path, max_piece: int = MAX_PIECE) -> list[Path]:
    """Writes the text of `root` as numbered pieces with checksums, and its tokenizer; returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [Path(shutil.copyfile(root / TOKENIZER, folder / TOKENIZER))]
    for name in SPLITS:
        path = Path(shutil.copyfile(root / f"{name}.jsonl.xz", folder / f"{name}.jsonl.xz"))
        written += split(path, max_piece)
        path.unlink()
    return written


def unpack(folder: Path, root: Path) -> dict[str, int]:
    """Joins the pieces in `folder`, tokenizes the text again into `root`; returns the tokens of each split.

    Raises BrokenPiecesError where a piece is missing or changed.
    """
    root.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(folder / TOKENIZER, root / TOKENIZER)
    tokenizer = load_tokenizer(root / TOKENIZER)
    tokens = {}
    for name in SPLITS:
        path = whole(folder / f"{name}.jsonl.xz")
        shutil.move(path, root / path.name)
        tokens[name] = write_tokens(root / name, read_texts(root / path.name), tokenizer)
    return tokens
