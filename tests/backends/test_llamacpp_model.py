"""Loading: what is read, what is refused, and that llama.cpp stays silent."""

import os
import stat
import subprocess
import sys

import numpy as np
import pytest

from dg_lsp.backends.llamacpp import LlamaModel, devices
from dg_lsp.backends.llamacpp.library import library
from dg_lsp.errors import (
    BackendError,
    ModelBrokenError,
    ModelError,
    ModelNotFoundError,
    ModelUnsupportedError,
)
from dg_lsp.settings import RuntimeSettings

CPU = RuntimeSettings(threads=1, gpu_layers=0)


def test_what_is_known_of_a_model(tiny_path):
    model = LlamaModel.load(tiny_path, CPU)
    assert model.vocab_size == 268
    assert model.size_bytes == tiny_path.stat().st_size
    assert "qwen3" in model.description
    assert model.metadata["general.architecture"] == "qwen3"
    assert model.metadata["dg.note"] == "ä" * 500
    assert model.kv_bytes_per_token == 2 * 2 * 64 * 2
    assert not model.on_gpu
    model.close()
    model.close()


def test_a_path_beyond_ascii(tiny_path, tmp_path):
    path = tmp_path / "modèle 😋.gguf"
    path.write_bytes(tiny_path.read_bytes())
    LlamaModel.load(path, CPU).close()


def cut(share):
    return lambda whole: whole[: int(len(whole) * share)]


BROKEN = {
    "empty": lambda _: b"",
    "three bytes": lambda _: b"GGU",
    "only the magic": lambda _: b"GGUF",
    "text": lambda _: b"import os\n" * 100,
    "a zip": lambda whole: b"PK\x03\x04" + whole[4:],
    "cut in the header": lambda whole: whole[:20],
    "cut in the keys": lambda whole: whole[:200],
    "cut in the vocabulary": lambda whole: whole[:3000],
    "cut in half": cut(0.5),
    "cut in the last tensor": lambda whole: whole[:-10],
    "only the description": cut(0.05),
    "no tensors": lambda whole: whole[:8] + bytes(8) + whole[16:],
    "impossibly many keys": lambda whole: whole[:16] + b"\xff" * 7 + b"\x7f" + whole[24:],
    "zeros after the header": lambda whole: whole[:24] + bytes(len(whole) - 24),
    "other endianness": lambda whole: whole[:4] + whole[7:3:-1] + whole[8:],
}


@pytest.mark.parametrize("damage", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_one_clear_line(tiny_path, tmp_path, damage):
    path = tmp_path / "broken.gguf"
    path.write_bytes(damage(tiny_path.read_bytes()))
    kind = ModelUnsupportedError if damage is BROKEN["other endianness"] else ModelBrokenError
    with pytest.raises(kind) as caught:
        LlamaModel.load(path, CPU)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert ";" in str(caught.value), "what to do next"


def test_a_file_cut_anywhere_is_refused(tiny_path, tmp_path):
    whole = tiny_path.read_bytes()
    path = tmp_path / "cut.gguf"
    for number in range(40):
        path.write_bytes(whole[: len(whole) * number // 40])
        with pytest.raises(ModelBrokenError):
            LlamaModel.load(path, CPU)


def test_missing_and_directory(tmp_path):
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        LlamaModel.load(tmp_path / "none.gguf", CPU)
    with pytest.raises(ModelNotFoundError, match="directory"):
        LlamaModel.load(tmp_path, CPU)


def test_a_file_that_may_not_be_read(tiny_path, tmp_path, monkeypatch):
    path = tmp_path / "secret.gguf"
    path.write_bytes(tiny_path.read_bytes())
    path.chmod(0)
    if os.access(path, os.R_OK):  # root reads everything
        monkeypatch.setattr(
            "pathlib.Path.open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied"))
        )
    with pytest.raises(ModelError, match="ermission"):
        LlamaModel.load(path, CPU)
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)


@pytest.mark.parametrize("architecture", ["nonsense", "bert", "mamba"])
def test_an_architecture_that_cannot_be_run(write_model, architecture):
    """llama.cpp knows some of them, but then misses their own keys or tensors in this file."""
    with pytest.raises(ModelError) as caught:
        LlamaModel.load(write_model(architecture=architecture), CPU)
    assert "\n" not in str(caught.value)
    if architecture == "nonsense":
        assert isinstance(caught.value, ModelUnsupportedError)


def test_a_diffusion_architecture_without_a_cache_is_refused(write_model, open_denoiser):
    with pytest.raises(ModelUnsupportedError, match=r"set runtime\.prompt_attention to exact"):
        open_denoiser(path=write_model(architecture="dream", biases=True))


SILENT = """
import sys
from pathlib import Path
import numpy as np
from dg_lsp.backends.llamacpp import LlamaDenoiser, LlamaModel
from dg_lsp.canvas.spec import MaskSampling, ModelSpec
from dg_lsp.errors import DgLspError
from dg_lsp.settings import RuntimeSettings
for path in sys.argv[1:]:
    try:
        model = LlamaModel.load(Path(path), RuntimeSettings(threads=1))
    except DgLspError:
        continue
    spec = ModelSpec("tiny", model.vocab_size, MaskSampling(0), (1,), canvas_lengths=(8,))
    denoiser = LlamaDenoiser(model, spec, RuntimeSettings(threads=1))
    denoiser.prefill(0, np.arange(5, 9))
    denoiser.predict(0, [np.zeros(8, np.int32)], 0.0, np.random.default_rng(0))
    denoiser.close()
"""


def test_nothing_is_ever_written(tiny_path, tmp_path):
    """In a process of its own: stdout carries the language server's protocol."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny_path.read_bytes()[:5000])
    run = subprocess.run(
        [sys.executable, "-c", SILENT, str(tiny_path), str(broken)], capture_output=True, timeout=120, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")


def test_an_impossible_context_length_is_refused(write_model):
    """As a signed number it is negative, and a context made of it takes all memory."""
    path = write_model(shape=write_model.shape(trained_length=2**32 - 4096))
    with pytest.raises(ModelUnsupportedError, match="context length"):
        LlamaModel.load(path, CPU)


def test_an_impossible_number_of_layers_is_refused(tiny_path, tmp_path):
    key = b"qwen3.block_count\x04\0\0\0"
    whole = tiny_path.read_bytes()
    assert key in whole
    path = tmp_path / "deep.gguf"
    path.write_bytes(whole.replace(key + b"\x02\0\0\0", key + b"\x02\0\x80\0"))
    with pytest.raises(ModelUnsupportedError, match="layers"):
        LlamaModel.load(path, CPU)


def test_a_damaged_vocabulary_is_an_error(tiny_path, tmp_path):
    """llama.cpp would throw through C, which ends the process."""
    path = tmp_path / "damaged.gguf"
    path.write_bytes(tiny_path.read_bytes().replace(b"\x02\0\0\0\0\0\0\0\xc4\xb6", b"\x02\0\0\0\0\0\0\0\xc4\x41", 1))
    model = LlamaModel.load(path, CPU)
    with pytest.raises(BackendError, match="damaged"):
        model.tokenizer.decode(np.arange(model.vocab_size))
    model.close()


def test_the_log_is_kept_for_doctor(tiny_path):
    LlamaModel.load(tiny_path, CPU).close()
    lines = library().log.lines
    assert 0 < len(lines) <= 50
    assert not any("\n" in line for line in lines)


def test_the_cpu_is_a_device():
    found = devices()
    assert any(device.kind == "cpu" and device.memory_total > 0 for device in found)
    assert all(device.name and device.memory_free <= device.memory_total for device in found)


@pytest.mark.parametrize(("features", "is_used"), [(b"AVX512 = 1 | AMX_INT8 = 1 | ", False), (b"AVX512 = 1 | ", True)])
def test_weights_are_never_packed_for_amx(tiny_path, monkeypatch, features, is_used):
    seen = []
    api = library().api

    def load(_path, params):
        seen.append(params.use_extra_bufts)

    monkeypatch.setattr(api, "llama_print_system_info", lambda: features)
    monkeypatch.setattr(api, "llama_model_load_from_file", load)
    with pytest.raises(ModelError):
        LlamaModel.load(tiny_path, CPU)
    assert seen == [is_used]
