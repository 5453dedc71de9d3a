"""llama.cpp's quantization, in a process of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import gguf
import pytest

from dg_lsp.backends.llamacpp import quantize as quantize_module
from dg_lsp.backends.llamacpp.quantize import FILE_TYPES, file_type, quantize
from dg_lsp.errors import ModelBrokenError, ModelUnsupportedError, UsageError
from dg_lsp.gguf import read_header


def test_numbers_are_llama_cpp_s():
    numbers = {kind.name.removeprefix("MOSTLY_").removeprefix("ALL_"): int(kind) for kind in gguf.LlamaFileType}
    assert {name: kind.number for name, kind in FILE_TYPES.items()}.items() <= numbers.items()


def test_names_are_taken_in_any_case_and_short():
    assert file_type("q8_0").name == "Q8_0"
    assert [file_type(name).name for name in ("Q3_K", "q4_k", "Q5_K")] == ["Q3_K_M", "Q4_K_M", "Q5_K_M"]
    with pytest.raises(UsageError, match="no type 'IQ1_S' for weights: known are F32, F16, BF16, Q8_0"):
        file_type("IQ1_S")


def test_sizes_are_estimated_generously():
    """As published of DiffusionGemma's 25.25 billion weights: 26.9 GB as Q8_0, 19.1 as Q5_K_M, 16.8 as Q4_K_M."""
    source = 2 * 25_250_987_068
    for name, published in (("Q8_0", 26.9e9), ("Q5_K_M", 19.1e9), ("Q4_K_M", 16.8e9)):
        assert published < file_type(name).size(source, 16) < 1.4 * published
    assert file_type("F32").size(source, 16) == source * 2


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K_M", "Q4_0", "BF16", "F32"])
def test_a_file_is_written_again(tiny_repacked, tmp_path, name):
    kind, seen = file_type(name), []
    quantize(tiny_repacked, tmp_path / "out.gguf", kind, seen.append)
    old, new = read_header(tiny_repacked), read_header(tmp_path / "out.gguf")
    assert sum(seen) == sum(tensor.size for tensor in old.tensors.values())
    assert new.values["general.file_type"].read() == kind.number
    said = [key for key in old.values if key.startswith(("dg.", "gemma4.", "tokenizer."))]
    assert {key: new.values[key] for key in said} == {key: old.values[key] for key in said}
    # rows of 64 are too short for the blocks of 256 that Q4_K has: llama.cpp takes the next larger format
    expected = {"Q4_K_M": {"Q5_0", "Q5_1", "Q8_0"}}.get(name, {name})
    assert new.tensors["blk.0.attn_q.weight"].kind.name in expected
    assert new.tensors["output_norm.weight"].kind.name == "F32"


def test_what_llama_cpp_says_no_to_is_told(tiny_repacked, tmp_path):
    quantize(tiny_repacked, tmp_path / "small.gguf", file_type("Q8_0"))
    with pytest.raises(
        ModelUnsupportedError, match=r"cannot hold small\.gguf as Q4_0: requantizing from type q8_0 is disa"
    ):
        quantize(tmp_path / "small.gguf", tmp_path / "smaller.gguf", file_type("Q4_0"))
    (tmp_path / "part.gguf").write_bytes(tiny_repacked.read_bytes()[:-5000])
    with pytest.raises(ModelBrokenError, match="cut short"):
        quantize(tmp_path / "part.gguf", tmp_path / "smaller.gguf", file_type("Q4_0"))


def test_whoever_breaks_off_ends_the_process(tiny_repacked, tmp_path, monkeypatch):
    started = []
    popen = subprocess.Popen

    def start(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    def look(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(quantize_module.subprocess, "Popen", start)
    with pytest.raises(KeyboardInterrupt):
        quantize(tiny_repacked, tmp_path / "out.gguf", file_type("Q8_0"), look)
    assert started[0].returncode is not None


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_interrupt_ends_the_process_at_once(tmp_path):
    """Ctrl-C reaches both processes; this one is in the middle of C code, where Python would not hear of it."""
    code = "import signal, sys; from dg_lsp.backends.llamacpp import quantize as q\n"
    code += "q.library = lambda: (print('ready', flush=True), __import__('time').sleep(60))\n"
    code += "q.main('a', 'b', '7')"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    with contextlib.closing(process.stdout):
        assert process.stdout.readline() == b"ready\n"
        started = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT
    assert time.monotonic() - started < 20
