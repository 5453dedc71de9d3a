import os

import pytest

from dg_lsp.training.pieces import BrokenPiecesError, split, whole


def test_pieces_make_the_file_again(tmp_path):
    path = tmp_path / "mini-q8_0.gguf"
    data = os.urandom(2500)
    path.write_bytes(data)
    written = split(path, max_piece=1000)
    assert [p.stat().st_size for p in written[:-1]] == [1000, 1000, 500]
    path.unlink()
    assert whole(path).read_bytes() == data
    assert whole(path) == path


def test_missing_or_changed_pieces_are_refused(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(os.urandom(2500))
    first, second, *_ = split(path, max_piece=1000)
    path.unlink()
    first.write_bytes(b"x" + first.read_bytes()[1:])
    with pytest.raises(BrokenPiecesError):
        whole(path)
    second.unlink()
    with pytest.raises(BrokenPiecesError):
        whole(path)
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        whole(tmp_path / "none.bin")
