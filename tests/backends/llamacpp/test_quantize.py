"""llama.cpp's quantization in a child process."""

import contextlib
import os
import signal
import subprocess
import sys

import gguf
import pytest

from dg_lsp.backends.llamacpp.quantize import file_type, quantize
from dg_lsp.errors import ModelError, ModelUnsupportedError
from dg_lsp.gguf import read_header


def test_estimated_sizes_are_upper_limits():
    """Published for DiffusionGemma's 25.25 billion weights: 26.9 GB as Q8_0, 19.1 as Q5_K_M, 16.8 as Q4_K_M."""
    source = 2 * 25_250_987_068
    for name, published in (("Q8_0", 26.9e9), ("Q5_K_M", 19.1e9), ("Q4_K_M", 16.8e9)):
        assert published < file_type(name).size(source, 16) < 1.4 * published
    assert file_type("F32").size(source, 16) == source * 2


@pytest.mark.parametrize(("given", "name"), [("Q8_0", "Q8_0"), ("q4_k", "Q4_K_M"), ("BF16", "BF16")])
def test_file_keeps_its_metadata_and_gets_another_type(tiny_repacked, tmp_path, given, name):
    progress = []
    quantize(tiny_repacked, tmp_path / "out.gguf", file_type(given), progress.append)
    old, new = read_header(tiny_repacked), read_header(tmp_path / "out.gguf")
    assert sum(progress) == sum(tensor.size for tensor in old.tensors.values())
    assert new.values["general.file_type"].read() == gguf.LlamaFileType[f"MOSTLY_{name}"]
    kept = [key for key in old.values if key.startswith(("dg.", "gemma4.", "tokenizer."))]
    assert {key: new.values[key] for key in kept} == {key: old.values[key] for key in kept}
    # rows of 64 do not fit the blocks of 256 of Q4_K: llama.cpp chooses a larger format
    expected = {"Q4_K_M": {"Q5_0", "Q5_1", "Q8_0"}}.get(name, {name})
    assert new.tensors["blk.0.attn_q.weight"].kind.name in expected
    assert new.tensors["output_norm.weight"].kind.name == "F32"


def test_source_that_cannot_be_quantized_is_refused(tiny_repacked, tmp_path):
    quantize(tiny_repacked, tmp_path / "small.gguf", file_type("Q8_0"))
    problem = r"cannot write small\.gguf as Q4_0: requantizing from type q8_0 is disa"
    with pytest.raises(ModelUnsupportedError, match=problem):
        quantize(tmp_path / "small.gguf", tmp_path / "smaller.gguf", file_type("Q4_0"))
    (tmp_path / "part.gguf").write_bytes(tiny_repacked.read_bytes()[:-5000])
    with pytest.raises(ModelError, match="cut short"):
        quantize(tmp_path / "part.gguf", tmp_path / "smaller.gguf", file_type("Q4_0"))


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_interrupt_ends_the_child_process_inside_native_code():
    """Ctrl-C reaches both processes."""
    code = "import signal, sys; from dg_lsp.backends.llamacpp import quantize as q\n"
    code += "q.library = lambda: (print('ready', flush=True), __import__('time').sleep(60))\n"
    code += "q.main('a', 'b', '7')"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    with contextlib.closing(process.stdout):
        assert process.stdout.readline() == b"ready\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT
