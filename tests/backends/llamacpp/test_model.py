"""Loading of model files: what is read, what is refused, copies as another architecture."""

import errno
import os
import re
import sys
import tempfile
from unittest.mock import Mock

import numpy as np
import pytest
import tiny_masked

from dg_lsp.backends.llamacpp import LlamaDenoiser, LlamaModel, model
from dg_lsp.backends.llamacpp import denoiser as denoiser_module
from dg_lsp.backends.llamacpp.library import library
from dg_lsp.canvas.layout import token_ids
from dg_lsp.canvas.spec import FimOrder, FimTokens
from dg_lsp.errors import BackendError, ModelError, ModelUnsupportedError
from dg_lsp.gguf import read_header
from dg_lsp.models.metadata import describe
from dg_lsp.models.registry import BASE, locate
from dg_lsp.settings import ModelSettings

CPU = ModelSettings(threads=1, gpu_layers=0)
PER_REQUEST = ModelSettings(threads=1, gpu_layers=0, prompt_attention="per_request")


def test_properties_of_a_model(write_model, tmp_path):
    path = write_model(name="ä" * 500).rename(tmp_path / "modèle 😋.gguf")
    loaded = LlamaModel(path, CPU)
    assert (loaded.vocab_size, loaded.size_bytes, loaded.on_gpu) == (268, path.stat().st_size, False)
    assert "qwen2" in loaded.description
    assert "115.6M" in LlamaModel(locate(BASE), CPU).description, "llama.cpp reports 256M"
    assert loaded.metadata["general.name"] == "ä" * 500
    assert loaded.sizes.kv_bytes_per_token == 2 * 2 * 64 * 2
    loaded.close()
    for call in (lambda: loaded.native, lambda: loaded.tokenizer.encode("x"), loaded.tokenizer.pieces):
        with pytest.raises(BackendError, match="closed"):
            call()


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="names of files are Unicode there")
def test_a_file_whose_name_is_not_unicode_is_loaded(tiny_path, tmp_path, opened):
    path = tmp_path / os.fsdecode(b"\xff.gguf")
    path.symlink_to(tiny_path)
    assert opened(LlamaModel(path, CPU)).vocab_size == 268


@pytest.mark.parametrize("architecture", ["nonsense", "bert", "mamba"])
def test_architecture_that_cannot_be_run_is_refused(write_model, architecture):
    """llama.cpp knows two of them, but their own keys and tensors are missing."""
    kind = ModelUnsupportedError if architecture == "nonsense" else ModelError
    with pytest.raises(kind, match=r"^[^\n]+$"):
        LlamaModel(write_model(architecture=architecture), CPU)


def test_native_log_is_not_printed(open_denoiser, tiny_path, tmp_path, capfd):
    """Standard output belongs to the language server's protocol."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny_path.read_bytes()[:5000])
    open_denoiser().prefill(0, token_ids(range(5, 9)))
    with pytest.raises(ModelError):
        LlamaModel(broken, CPU)
    assert capfd.readouterr() == ("", "")


def test_a_file_without_weights_is_refused(tiny_path, tmp_path):
    whole, path = tiny_path.read_bytes(), tmp_path / "empty.gguf"
    path.write_bytes(whole[:8] + bytes(8) + whole[16:])
    with pytest.raises(ModelError, match="no weights; name a complete model"):
        LlamaModel(path, CPU)


def test_impossible_sizes_are_refused(write_model, tiny_path, tmp_path):
    with pytest.raises(ModelUnsupportedError, match="context length"):
        LlamaModel(write_model(trained_length=2**32 - 4096), CPU)
    key, whole = b"qwen2.block_count\x04\0\0\0", tiny_path.read_bytes()
    assert key in whole
    deep = tmp_path / "deep.gguf"
    deep.write_bytes(whole.replace(key + b"\x02\0\0\0", key + b"\x02\0\x80\0"))
    with pytest.raises(ModelUnsupportedError, match="layers"):
        LlamaModel(deep, CPU)


def test_damaged_vocabulary_is_an_error(tiny_path, tmp_path, opened):
    """llama.cpp would throw through C, which ends the process."""
    path = tmp_path / "damaged.gguf"
    path.write_bytes(tiny_path.read_bytes().replace(b"\x02\0\0\0\0\0\0\0\xc4\xb6", b"\x02\0\0\0\0\0\0\0\xc4\x41", 1))
    loaded = opened(LlamaModel(path, CPU))
    with pytest.raises(BackendError, match="damaged"):
        loaded.tokenizer.decode(np.arange(loaded.vocab_size))


@pytest.mark.parametrize(("features", "is_used"), [(b"AVX512 = 1 | AMX_INT8 = 1 | ", False), (b"AVX512 = 1 | ", True)])
def test_weights_are_never_packed_for_amx(tiny_path, monkeypatch, features, is_used):
    api = library().api
    monkeypatch.setattr(api, "llama_print_system_info", lambda: features)
    monkeypatch.setattr(api, "llama_model_load_from_file", load := Mock(wraps=api.llama_model_load_from_file))
    LlamaModel(tiny_path, CPU).close()
    assert load.call_args.args[1].use_extra_bufts == is_used


def test_matrices_that_are_packed_in_place_of_amx_predict_the_same(monkeypatch, opened):
    header = read_header(locate(BASE))
    packed = re.compile(model._packed_matrices(header).decode())
    names = {name for name in header.tensors if packed.search(name)}
    assert names == {name for name, tensor in header.tensors.items() if tensor.kind.name == "IQ4_NL"}
    monkeypatch.setattr(library().api, "llama_print_system_info", lambda: b"AMX_INT8 = 1 | ")
    predictions = []
    for names in (packed.pattern, "nothing"):
        monkeypatch.setattr(model, "_packed_matrices", lambda _header, names=names: names.encode())
        loaded = LlamaModel(locate(BASE), CPU)
        denoiser = opened(LlamaDenoiser(loaded, describe(loaded.metadata, loaded.vocab_size, BASE), CPU))
        predictions.append(denoiser.extend(0, np.arange(100, 140, dtype=np.int32)))
    np.testing.assert_allclose(*(prediction.confidence for prediction in predictions), atol=0.1)


def test_fill_in_the_middle_tokens_are_those_of_the_file(write_model, opened):
    specials = opened(
        LlamaModel(write_model(fim_ids={"sep": 0, "pre": 2, "suf": 3, "mid": 4}), CPU)
    ).tokenizer.specials()
    prompt = (2, "{prefix}", 3, "{suffix}", 4)
    files = {"file": (0, "{path}\n{code}"), "prompt_with_files": ("{files}", 0, "{path}\n", *prompt)}
    assert specials.fim == FimTokens(2, 3, 4, FimOrder.PREFIX_FIRST, **files)
    assert {0, 1, 2, 3} <= {*specials.control_ids}


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """The folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def dream(tmp_path):
    return tiny_masked.write(tmp_path / "dream.gguf", tiny_masked.make("dream"))


def test_model_as_another_architecture_outlives_its_file(dream, folder, monkeypatch, open_masked):
    monkeypatch.setattr(model, "_MAPPED_BYTES", 0)
    denoiser = open_masked(dream, prompt_attention="per_request")
    loaded = denoiser._model
    assert loaded.has_cache
    assert loaded.metadata["general.architecture"] == "dream"
    assert loaded.path == dream
    dream.unlink()
    denoiser.prefill(0, token_ids(range(20, 50)))
    (prediction,) = denoiser.predict(0, [token_ids([tiny_masked.MASK] * 8)], 0.0, np.random.default_rng(0))
    assert len(np.unique(prediction.confidence)) > 1
    assert not list(folder.iterdir())


def test_copy_on_a_full_disk_is_refused(dream, folder, monkeypatch):
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(model, "write_gguf", Mock(side_effect=error))
    with pytest.raises(ModelError, match=r"No space left.*prompt_attention \(model\.sampler\) to exact"):
        LlamaModel(dream, PER_REQUEST)
    assert not list(folder.iterdir())


def test_copy_of_a_split_model_is_refused(tmp_path):
    part = tiny_masked.write(tmp_path / "part.gguf", tiny_masked.make("dream"), parts=2)
    with pytest.raises(ModelUnsupportedError, match="several parts"):
        LlamaModel(part, PER_REQUEST)


def test_a_denoiser_that_cannot_be_made_leaves_no_context(tiny_path, open_denoiser, monkeypatch):
    api = library().api
    freed = []
    for name in ("llama_free", "llama_model_free"):
        free = getattr(api, name)
        monkeypatch.setattr(api, name, lambda handle, free=free, name=name: freed.append(name) or free(handle))
    monkeypatch.setattr(denoiser_module, "threads_for", Mock(side_effect=BackendError("made up")))
    loaded = LlamaModel(tiny_path, CPU)
    with pytest.raises(BackendError, match="made up"):
        LlamaDenoiser(loaded, open_denoiser.mask, CPU)
    loaded.close()
    assert freed == ["llama_free", "llama_model_free"]
