import os

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("gguf")
pytest.importorskip("datasketch")

from dataclasses import fields

import numpy as np

from dg_lsp.training.corpus import SourceFile
from dg_lsp.training.packing import pack, unpack
from dg_lsp.training.pieces import BrokenPiecesError
from dg_lsp.training.prepare import read_texts, write_texts, write_tokens
from dg_lsp.training.store import TokenStore, load_store


@pytest.fixture
def root(toy, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    toy.tokenizer.save(str(root / "tokenizer.json"))
    for split, texts in (("train", toy.texts[:50]), ("val", toy.texts[50:])):
        files = [SourceFile("toy", f"{i}.py", text) for i, text in enumerate(texts)]
        write_texts(root / f"{split}.jsonl.xz", files)
        write_tokens(root / split, files, toy.tokenizer)
    return root


def test_a_work_folder_comes_out_of_small_pieces_as_it_went_in(root, tmp_path):
    pieces = pack(root, tmp_path / "pieces", max_piece=2000)
    assert max(piece.stat().st_size for piece in pieces if piece.name != "tokenizer.json") <= 2000
    assert sorted(pieces) == sorted((tmp_path / "pieces").iterdir())
    tokens = unpack(tmp_path / "pieces", tmp_path / "other")
    for split in ("train", "val"):
        assert read_texts(tmp_path / "other" / f"{split}.jsonl.xz") == read_texts(root / f"{split}.jsonl.xz")
        ours, theirs = load_store(root / split), load_store(tmp_path / "other" / split)
        assert tokens[split] == len(ours.tokens)
        for field in fields(TokenStore):
            assert np.array_equal(getattr(ours, field.name), getattr(theirs, field.name))


def test_a_changed_piece_is_refused(root, tmp_path):
    pack(root, tmp_path / "pieces", max_piece=2000)
    piece = tmp_path / "pieces" / "train.jsonl.xz.001"
    piece.write_bytes(os.urandom(piece.stat().st_size))
    with pytest.raises(BrokenPiecesError):
        unpack(tmp_path / "pieces", tmp_path / "other")
