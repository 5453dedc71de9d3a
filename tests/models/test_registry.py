import os
from pathlib import Path

import pytest

from dg_lsp.errors import ModelNotFoundError
from dg_lsp.models import registry
from dg_lsp.models.registry import BUNDLED, BundledModel, known_names, locate


def test_the_default_model_is_bundled():
    from dg_lsp.settings import Settings

    assert Settings().model in known_names()


def test_a_known_name_is_the_bundled_file():
    path = locate("dg-mini")
    assert path == BUNDLED[0].path
    with path.open("rb") as file:
        assert file.read(4) == b"GGUF"


def test_a_known_name_wins_over_a_file_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("dg-mini").write_bytes(b"GGUF")
    assert locate("dg-mini") == BUNDLED[0].path
    assert locate("./dg-mini") == Path("dg-mini")


def test_a_path_is_taken_as_it_is(tmp_path):
    file = tmp_path / "über model.gguf"
    file.write_bytes(b"GGUF")
    assert locate(str(file)) == file


def test_the_home_directory_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert locate("~/m.gguf") == tmp_path / "m.gguf"


@pytest.mark.parametrize("name", ["", "dg-maxi", "no/such.gguf", "gone.gguf", "a\0b", "x" * 5000])
def test_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(ModelNotFoundError, match="dg-mini"):
        locate(name)


def test_a_directory_is_no_model(tmp_path):
    with pytest.raises(ModelNotFoundError, match="is a directory"):
        locate(str(tmp_path))


def test_an_unreadable_file_is_no_model(tmp_path, monkeypatch):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ModelNotFoundError, match="cannot be read"):
        locate(str(file))


def test_a_bundled_file_that_is_gone_says_how_to_get_it_back(monkeypatch):
    monkeypatch.setattr(registry, "BUNDLED", (BundledModel("dg-mini", "gone.gguf"),))
    with pytest.raises(ModelNotFoundError, match="install dg-lsp again"):
        locate("dg-mini")


def test_a_model_that_was_not_fetched_yet_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("DG_LSP_DATA_DIR", str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="dg-lsp models pull gemma3-270m"):
        locate("gemma3-270m")
