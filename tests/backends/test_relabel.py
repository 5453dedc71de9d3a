"""A file under another architecture's name: the same weights, and nothing left behind."""

import os
import tempfile

import gguf
import numpy as np
import pytest
import tiny_masked
from dg_lsp.backends.llamacpp.architecture_alias import architecture_of, relabelled

from dg_lsp.backends.llamacpp import architecture_alias
from dg_lsp.backends.llamacpp.loader import denoiser_for
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.canvas.layout import token_ids
from dg_lsp.errors import ModelBrokenError, ModelError, ModelMemoryError, ModelUnsupportedError
from dg_lsp.models.metadata import describe
from dg_lsp.settings import RuntimeSettings


@pytest.fixture(params=["in memory", "on disk"])
def where(request, monkeypatch, tmp_path):
    """Both ways of keeping the copy; on disk, the folder that must be empty afterwards."""
    if request.param == "in memory" and not architecture_alias.IN_MEMORY:
        pytest.skip("this system has no files in memory")
    monkeypatch.setattr(architecture_alias, "IN_MEMORY", request.param == "in memory")
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def dream(tmp_path):
    return tiny_masked.write(tmp_path / "dream.gguf", tiny_masked.make("dream"))


def contents(path):
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    return fields, {tensor.name: np.array(tensor.data) for tensor in reader.tensors}


def test_only_names_change(dream, where, tmp_path):
    fields, tensors = contents(dream)
    with relabelled(dream, "qwen3moe") as copy:  # a longer name moves everything behind it
        (tmp_path / "kept").write_bytes(copy.read_bytes())
    new_fields, new_tensors = contents(tmp_path / "kept")
    assert new_fields.pop("general.architecture") == "qwen3moe"
    assert new_fields.pop("general.relabelled_from") == fields.pop("general.architecture") == "dream"
    fields.pop("dream.attention.causal")
    assert new_fields == {name.replace("dream.", "qwen3moe."): value for name, value in fields.items()}
    assert list(new_tensors) == list(tensors)
    assert all(np.array_equal(new_tensors[name], values) for name, values in tensors.items())
    assert not list(where.iterdir())


@pytest.mark.parametrize("alignment", [32, 64, 256])
def test_weights_stand_where_the_files_alignment_wants_them(tmp_path, alignment):
    writer = gguf.GGUFWriter(tmp_path / "some.gguf", "dream")
    writer.add_custom_alignment(alignment)
    writer.add_tensor("a", np.arange(7, dtype=np.float32))
    writer.add_tensor("b", np.arange(5, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with relabelled(tmp_path / "some.gguf", "qwen2") as copy:
        (tmp_path / "kept").write_bytes(copy.read_bytes())
    _, tensors = contents(tmp_path / "kept")
    assert tensors["a"].tolist() == list(range(7))
    assert tensors["b"].tolist() == list(range(5))


def test_the_model_remembers_what_it_was(dream, where):
    settings = RuntimeSettings(threads=1, gpu_layers=0, prompt_attention="causal")
    model = LlamaModel.load(dream, settings)
    assert model.has_cache
    assert model.metadata["general.architecture"] == "qwen2"
    assert model.metadata["general.relabelled_from"] == "dream"
    assert model.path == dream
    model.close()
    assert not list(where.iterdir())


def test_a_large_copy_is_mapped_and_outlives_its_file(dream, where, monkeypatch):
    monkeypatch.setattr("dg_lsp.backends.llamacpp.model._MAPPED_BYTES", 0)
    settings = RuntimeSettings(threads=1, gpu_layers=0, prompt_attention="per_request")
    model = LlamaModel.load(dream, settings)
    spec = describe(model.metadata, model.vocab_size, "dream", model.tokenizer.specials())
    denoiser = denoiser_for(model, spec, settings)
    dream.unlink()
    denoiser.prefill(0, token_ids(range(20, 50)))
    (prediction,) = denoiser.predict(0, [token_ids([tiny_masked.MASK] * 8)], 0.0, np.random.default_rng(0))
    assert len(np.unique(prediction.argmax_ids)) > 1
    denoiser.close()
    assert not list(where.iterdir())


@pytest.mark.parametrize("architecture", [*tiny_masked.ARCHITECTURES, "qwen2"])
def test_a_file_says_its_architecture_before_it_is_loaded(tmp_path, architecture):
    path = tiny_masked.write(tmp_path / "some.gguf", tiny_masked.make(architecture, layers=1))
    assert architecture_of(path) == architecture


@pytest.mark.parametrize("size", [0, 3, 24, 30, 60])
def test_a_file_that_ends_early_says_nothing(dream, size):
    dream.write_bytes(dream.read_bytes()[:size])
    assert architecture_of(dream) in ("", "dream")


@pytest.mark.parametrize("size", [10, 100, 3000])
def test_a_header_that_is_cut_short_is_told(dream, where, size):
    dream.write_bytes(dream.read_bytes()[:size])
    with pytest.raises(ModelBrokenError, match="cut short"), relabelled(dream, "qwen2"):
        pass
    assert not list(where.iterdir())


def test_a_length_that_cannot_be_is_damage(dream):
    raw = bytearray(dream.read_bytes())
    raw[24:32] = (2**62).to_bytes(8, "little")
    dream.write_bytes(raw)
    assert architecture_of(dream) == ""
    with pytest.raises(ModelBrokenError), relabelled(dream, "qwen2"):
        pass


def test_a_model_in_parts_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "some.gguf", "dream")
    writer.add_uint16("split.count", 2)
    writer.add_tensor("a", np.arange(7, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelUnsupportedError, match="several parts"), relabelled(tmp_path / "some.gguf", "qwen2"):
        pass


def test_no_room_for_the_copy_is_told(dream, where, monkeypatch):
    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("shutil.copyfileobj", full)
    with (
        pytest.raises(ModelError, match=r"No space left.*runtime\.prompt_attention to exact"),
        relabelled(dream, "qwen2"),
    ):
        pass
    assert not list(where.iterdir())


@pytest.mark.skipif(not architecture_alias.IN_MEMORY, reason="this system has no files in memory")
def test_a_copy_that_does_not_fit_into_memory_is_refused_before_it_is_made(dream, monkeypatch):
    monkeypatch.setattr(architecture_alias, "system_free", lambda: 100 << 10)
    with (
        pytest.raises(ModelMemoryError, match=r"0 are free; set runtime\.prompt_attention"),
        relabelled(dream, "qwen2"),
    ):
        pass
    monkeypatch.setattr(architecture_alias, "system_free", lambda: 100 << 20)
    with relabelled(dream, "qwen2") as copy:
        assert copy.stat().st_size > 1000


def test_nothing_is_left_when_the_model_cannot_be_loaded(dream, where):
    dream.write_bytes(dream.read_bytes()[:-5000])
    with pytest.raises(ModelBrokenError, match="cut short"):
        LlamaModel.load(dream, RuntimeSettings(threads=1, gpu_layers=0, prompt_attention="causal"))
    assert not list(where.iterdir())
