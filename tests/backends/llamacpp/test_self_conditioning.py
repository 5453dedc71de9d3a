"""Self-conditioning on the host, compared with dense arithmetic in float64."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from dg_lsp.backends.llamacpp.diffusiongemma.self_conditioning import EmbeddingTable, SelfConditioning, StoredMatrix
from dg_lsp.errors import ModelUnsupportedError
from dg_lsp.gguf import read_header

VOCAB, WIDTH = 700, 256
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_1", "Q6_K", "Q4_K")


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def write(path: Path, tensors, kind="F32"):
    writer = gguf.GGUFWriter(path, "gemma4")
    for name, values in tensors.items():
        stored = gguf.GGMLQuantizationType[kind]
        try:
            raw = gguf.quants.quantize(values, stored)
        except NotImplementedError:  # gguf reads more formats than it writes
            block, size = gguf.GGML_QUANT_SIZES[stored]
            raw = np.random.default_rng(1).integers(0, 120, (len(values), WIDTH // block * size), dtype=np.uint8)
        writer.add_tensor(name, raw, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def table(tmp_path, opened):
    def make(kind="F32", threads=1):
        path = write(tmp_path / f"{kind}.gguf", {"token_embd.weight": random(VOCAB, WIDTH)}, kind)
        made = opened(EmbeddingTable(read_header(path), VOCAB, WIDTH, threads=threads))
        tensor = gguf.GGUFReader(path).tensors[0]
        return made, gguf.quants.dequantize(tensor.data, tensor.tensor_type)

    return make


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 3])
def test_sums_of_rows_equal_those_of_the_dense_table(table, kind, threads):
    made, dense = table(kind, threads)
    some = np.sort(np.random.default_rng(2).choice(VOCAB, 600, replace=False)).astype(np.int32)
    for ids, rows in ((some, dense[some]), (None, dense), (some[:1], dense[some[:1]])):
        shares = np.random.default_rng(3).random((5, len(rows)), dtype=np.float32)
        exact = shares.astype(np.float64) @ rows
        np.testing.assert_allclose(made.mix(ids, shares), exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())


def test_missing_tensor_and_other_shapes_are_refused(tmp_path):
    header = read_header(write(tmp_path / "t.gguf", {"token_embd.weight": random(VOCAB, WIDTH)}))
    with pytest.raises(ModelUnsupportedError, match="convert"):
        EmbeddingTable(header, VOCAB + 1, WIDTH, threads=1)
    with pytest.raises(ModelUnsupportedError, match=r"no tensor self_cond\.gate"):
        StoredMatrix.of(header, "self_cond.gate")
    network = {"pre_norm": (WIDTH,), "gate": (96, WIDTH), "up": (96, WIDTH), "down": (WIDTH, 96)}
    path = write(tmp_path / "m.gguf", {f"self_cond.{name}": random(*shape) for name, shape in network.items()})
    with pytest.raises(ModelUnsupportedError, match="does not fit"):
        SelfConditioning(read_header(path), WIDTH // 2, epsilon=1e-6)
