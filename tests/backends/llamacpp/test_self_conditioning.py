"""Self-conditioning on the host, compared with dense arithmetic in float64."""

import gguf
import numpy as np
import pytest

from dg_lsp.backends.llamacpp.diffusiongemma.self_conditioning import EmbeddingTable
from dg_lsp.gguf import TENSOR_TYPES, Tensor, read_header, write_gguf

VOCAB, WIDTH = 700, 256
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_1", "Q6_K", "Q4_K")


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", KINDS)
def test_sums_of_rows_equal_those_of_the_dense_table(tmp_path, opened, name, threads):
    kind, path = gguf.GGMLQuantizationType[name], tmp_path / "table.gguf"
    rng = np.random.default_rng(0)
    try:
        raw = gguf.quants.quantize(rng.standard_normal((VOCAB, WIDTH), np.float32), kind)
    except NotImplementedError:  # gguf reads more formats than it writes
        block, size = gguf.GGML_QUANT_SIZES[kind]
        raw = rng.integers(0, 120, (VOCAB, WIDTH // block * size), dtype=np.uint8)
    table = Tensor("token_embd.weight", (VOCAB, WIDTH), TENSOR_TYPES[kind], lambda: (raw.tobytes(),))
    with path.open("wb") as file:
        write_gguf(file, {}, [table])
    made = opened(EmbeddingTable(read_header(path), VOCAB, WIDTH, threads=threads))
    some = np.sort(np.random.default_rng(2).choice(VOCAB, 600, replace=False)).astype(np.int32)
    for ids in (some, np.arange(VOCAB, dtype=np.int32), some[:1]):
        rows = gguf.quants.dequantize(raw, kind)[ids]
        shares = np.random.default_rng(3).random((5, len(rows)), dtype=np.float32)
        exact = shares.astype(np.float64) @ rows
        np.testing.assert_allclose(made.mix(ids, shares), exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())
