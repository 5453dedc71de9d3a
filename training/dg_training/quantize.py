"""Quantizes an exported file with llama.cpp, which rounds the weights that matter most with the smallest error.

What a weight matters follows from the mean square of the states that it is multiplied with, over batches of the
validation split (llama.cpp's importance matrix). A width that is no multiple of 256 excludes the K-quants.
"""

import ctypes
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import llama_cpp
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dg_lsp.backends.llamacpp.library import library
from dg_lsp.errors import InputFileError
from dg_training.adapt import CPU_ROWS, prepare_vocabulary
from dg_training.network import DiffusionNetwork
from dg_training.objective import Objective, ObjectiveConfig, validation_batches
from dg_training.pretrained import read_pretrained
from dg_training.rows import RowConfig

FILE_TYPES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "IQ4_NL": 25}
"""llama.cpp's LLAMA_FTYPE_* of the types whose blocks have 32 weights."""
TENSOR_TYPES = {"Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "IQ4_NL": 20}  # llama.cpp's GGML_TYPE_*
Importance = Mapping[str, npt.NDArray[np.float32]]


def importance(network: DiffusionNetwork, root: Path, rows: RowConfig, num_batches: int) -> Importance:
    """Mean squares of the inputs of each matrix, by its name in the file, shape (columns,)."""
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}

    def add(name: str, states: Tensor) -> None:
        flat = states.detach().float().reshape(-1, states.shape[-1])
        sums[name] = sums.get(name, torch.zeros(flat.shape[1])) + (flat * flat).sum(0)
        counts[name] = counts.get(name, 0) + len(flat)

    hooks = [
        module.register_forward_pre_hook(lambda _, inputs, name=f"{name}.weight": add(name, inputs[0]))
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear)
    ]
    output = "token_embd.weight" if network.output is None else "output.weight"
    hooks.append(network.output_norm.register_forward_hook(lambda _, __, states: add(output, states)))
    objective = Objective(network, ObjectiveConfig(is_shifted=True))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for batch in validation_batches(root, rows, torch.device("cpu"), num_batches):
            objective.losses(batch, generator)
    for hook in hooks:
        hook.remove()
    return {name: (total / counts[name]).numpy().astype(np.float32) for name, total in sums.items()}


def quantize(
    source: Path, root: Path, out: Path, file_type: str, *, num_batches: int = 8, embedding_type: str = ""
) -> None:
    """Write a file that `adapt` exported in another type; the embedding may have one of its own.

    The importance matrix is of so many validation batches of the corpus in `root`; 0: none is used.

    Raises:
        InputFileError: the file has no vocabulary of ours, or llama.cpp cannot quantize it.
        ModelError: the file is missing, damaged or not supported.
    """
    weights = _importance_of(source, root, num_batches) if num_batches else {}
    library()  # its log takes characters that llama.cpp cuts in two
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = FILE_TYPES[file_type], 2, True
    if embedding_type:
        params.token_embedding_type = params.output_tensor_type = TENSOR_TYPES[embedding_type]
    entries = (llama_cpp.llama_model_imatrix_data * (len(weights) + 1))()  # the last one has no name
    arrays = [np.ascontiguousarray(values) for values in weights.values()]
    for entry, name, array in zip(entries, weights, arrays, strict=False):
        entry.name = name.encode()
        entry.data = array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        entry.size = array.size
    if weights:
        params.imatrix = ctypes.cast(entries, ctypes.POINTER(llama_cpp.llama_model_imatrix_data))
    code = llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params))
    if code:
        raise InputFileError(f"llama.cpp cannot write {source} as {file_type}: error {code}")


def _importance_of(source: Path, root: Path, num_batches: int) -> Importance:
    model = read_pretrained(source)
    with TemporaryDirectory() as folder:
        pruned = prepare_vocabulary(model, root, Path(folder), 0)
        network = model.network(pruned).eval()
        return importance(network, Path(folder), CPU_ROWS, num_batches)
