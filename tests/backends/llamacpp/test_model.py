"""Loading of model files: what is read and what is refused."""

import re
import subprocess
import sys

import numpy as np
import pytest
import tiny_masked

from dg_lsp.backends.llamacpp import LlamaModel, devices
from dg_lsp.backends.llamacpp.library import library
from dg_lsp.canvas.spec import FimOrder, FimTokens
from dg_lsp.errors import (
    BackendError,
    ModelBrokenError,
    ModelError,
    ModelNotFoundError,
    ModelUnsupportedError,
)
from dg_lsp.settings import ModelSettings

CPU = ModelSettings(threads=1, gpu_layers=0)


def test_properties_of_a_model(write_model, tmp_path):
    path = write_model(name="ä" * 500).rename(tmp_path / "modèle 😋.gguf")
    loaded = LlamaModel.load(path, CPU)
    assert loaded.vocab_size == 268
    assert loaded.size_bytes == path.stat().st_size
    assert "qwen2" in loaded.description
    assert loaded.metadata["general.architecture"] == "qwen2"
    assert loaded.metadata["general.name"] == "ä" * 500
    assert loaded.sizes.kv_bytes_per_token == 2 * 2 * 64 * 2
    assert not loaded.on_gpu
    loaded.close()
    loaded.close()
    for call in (lambda: loaded.native, lambda: loaded.tokenizer.encode("x"), lambda: loaded.tokenizer.decode([9])):
        with pytest.raises(BackendError, match="closed"):
            call()


BROKEN = {
    "empty": lambda _: b"",
    "text": lambda _: b"import os\n" * 100,
    "cut in the last tensor": lambda whole: whole[:-10],
    "no tensors": lambda whole: whole[:8] + bytes(8) + whole[16:],
    "impossibly many keys": lambda whole: whole[:16] + b"\xff" * 7 + b"\x7f" + whole[24:],
    "other endianness": lambda whole: whole[:4] + whole[7:3:-1] + whole[8:],
}


@pytest.mark.parametrize("damage", BROKEN.values(), ids=BROKEN)
def test_broken_file_is_one_line_with_advice(tiny_path, tmp_path, damage):
    path = tmp_path / "broken.gguf"
    path.write_bytes(damage(tiny_path.read_bytes()))
    kind = ModelUnsupportedError if damage is BROKEN["other endianness"] else ModelBrokenError
    with pytest.raises(kind) as caught:
        LlamaModel.load(path, CPU)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert re.search("[;:,].* (download|name|use) ", str(caught.value))


def test_missing_file_and_directory_are_refused(tmp_path):
    for path, problem in ((tmp_path / "none.gguf", "does not exist"), (tmp_path, "directory")):
        with pytest.raises(ModelNotFoundError, match=problem):
            LlamaModel.load(path, CPU)


@pytest.mark.parametrize("architecture", ["nonsense", "bert", "mamba"])
def test_architecture_that_cannot_be_run_is_refused(write_model, architecture):
    """llama.cpp knows two of them, but their own keys and tensors are missing."""
    kind = ModelUnsupportedError if architecture == "nonsense" else ModelError
    with pytest.raises(kind, match=r"^[^\n]+$"):
        LlamaModel.load(write_model(architecture=architecture), CPU)


SILENT = """
import sys
from pathlib import Path
import numpy as np
from dg_lsp.backends.llamacpp import LlamaDenoiser, LlamaModel
from dg_lsp.canvas.spec import MaskSampling, ModelSpec
from dg_lsp.errors import DgLspError
from dg_lsp.settings import ModelSettings
for path in sys.argv[1:]:
    try:
        model = LlamaModel.load(Path(path), ModelSettings(threads=1))
    except DgLspError:
        continue
    spec = ModelSpec("tiny", model.vocab_size, MaskSampling(0), (1,), canvas_lengths=(8,))
    denoiser = LlamaDenoiser(model, spec, ModelSettings(threads=1))
    denoiser.prefill(0, np.arange(5, 9))
    denoiser.predict(0, [np.zeros(8, np.int32)], 0.0, np.random.default_rng(0))
    denoiser.close()
"""


def test_native_log_is_not_printed(tiny_path, tmp_path):
    """Standard output belongs to the language server's protocol."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny_path.read_bytes()[:5000])
    command = [sys.executable, "-c", SILENT, str(tiny_path), str(broken)]
    run = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")


def test_impossible_sizes_are_refused(write_model, tiny_path, tmp_path):
    with pytest.raises(ModelUnsupportedError, match="context length"):
        LlamaModel.load(write_model(trained_length=2**32 - 4096), CPU)
    key, whole = b"qwen2.block_count\x04\0\0\0", tiny_path.read_bytes()
    assert key in whole
    deep = tmp_path / "deep.gguf"
    deep.write_bytes(whole.replace(key + b"\x02\0\0\0", key + b"\x02\0\x80\0"))
    with pytest.raises(ModelUnsupportedError, match="layers"):
        LlamaModel.load(deep, CPU)


def test_damaged_vocabulary_is_an_error(tiny_path, tmp_path, opened):
    """llama.cpp would throw through C, which ends the process."""
    path = tmp_path / "damaged.gguf"
    path.write_bytes(tiny_path.read_bytes().replace(b"\x02\0\0\0\0\0\0\0\xc4\xb6", b"\x02\0\0\0\0\0\0\0\xc4\x41", 1))
    loaded = opened(LlamaModel.load(path, CPU))
    with pytest.raises(BackendError, match="damaged"):
        loaded.tokenizer.decode(np.arange(loaded.vocab_size))


def test_cpu_is_a_device():
    found = devices()
    assert any(device.kind == "cpu" and device.memory_total > 0 for device in found)
    assert all(device.name and device.memory_free <= device.memory_total for device in found)


@pytest.mark.parametrize(("features", "is_used"), [(b"AVX512 = 1 | AMX_INT8 = 1 | ", False), (b"AVX512 = 1 | ", True)])
def test_weights_are_never_packed_for_amx(tiny_path, monkeypatch, features, is_used):
    used, api = [], library().api
    load = api.llama_model_load_from_file

    def record(path, params):
        used.append(params.use_extra_bufts)
        return load(path, params)

    monkeypatch.setattr(api, "llama_print_system_info", lambda: features)
    monkeypatch.setattr(api, "llama_model_load_from_file", record)
    LlamaModel.load(tiny_path, CPU).close()
    assert used == [is_used]


@pytest.mark.parametrize("has_fim", [True, False])
def test_special_tokens_are_read_from_the_vocabulary(write_model, opened, has_fim):
    fim = {"fim_ids": {"sep": 0, "pre": 2, "suf": 3, "mid": 4}}
    plain = {"tokens": tiny_masked.TOKENS, "add_start": True}
    specials = opened(LlamaModel.load(write_model(**fim if has_fim else plain), CPU)).tokenizer.specials()
    assert {0, 1, 2, 3} <= {*specials.control_ids}
    assert 1 in specials.end_ids
    assert specials.start_ids == (() if has_fim else (4,))
    prompt = (2, "{prefix}", 3, "{suffix}", 4)
    files = {"file": (0, "{path}\n{code}"), "prompt_with_files": ("{files}", 0, "{path}\n", *prompt)}
    assert specials.fim == (FimTokens(2, 3, 4, FimOrder.PREFIX_FIRST, **files) if has_fim else None)
    assert specials.spellings["<|mask|>"] == 0
