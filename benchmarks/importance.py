"""Quantizes a float16 GGUF of `python -m dg_lsp.training export`, with and without an importance matrix.

    python benchmarks/importance.py MODEL-f16.gguf TRAINING-ROOT OUTPUT-FOLDER [--config tiny] [--batches 64]

The importance of a column is the mean square of its inputs over batches of the training data, canvases included;
llama.cpp's own tool measures it on text without canvases. `dg-lsp bench infill CASES --model FILE` measures the result.
"""

import argparse
import ctypes
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dg_lsp.training.export import read_model
from dg_lsp.training.objective import Objective, to_tensors
from dg_lsp.training.rows import BatchLoader
from dg_lsp.training.train import CONFIGS

KINDS = ("Q4_K_M", "Q5_K_M", "Q4_0")


class Squares:
    """Sums of squared inputs by column, for every linear layer."""

    def __init__(self, network: nn.Module) -> None:
        self.sums: dict[str, Tensor] = {}
        self.num_rows: dict[str, int] = {}
        for name, layer in network.named_modules():
            if isinstance(layer, nn.Linear):
                layer.register_forward_pre_hook(self._hook(name))

    def _hook(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def add(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            rows = inputs[0].detach().float().flatten(0, -2)
            self.sums[name] = self.sums.get(name, torch.zeros(rows.shape[1])) + rows.square().sum(0)
            self.num_rows[name] = self.num_rows.get(name, 0) + len(rows)

        return add

    def means(self) -> dict[str, np.ndarray]:
        """Mean squares by the tensor names of the GGUF file, float32."""
        means = {f"{name}.weight": total / self.num_rows[name] for name, total in self.sums.items()}
        return {name: mean.numpy().astype(np.float32) for name, mean in means.items()}


def importance_matrix(model: Path, root: Path, config_name: str, batches: int) -> dict[str, np.ndarray]:
    """Importance of the columns of every tensor."""
    config = CONFIGS[config_name]
    network, _ = read_model(model, config.network)
    objective = Objective(network, config.objective, compiled=False)
    squares, generator = Squares(network), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for batch in islice(BatchLoader(root, config.rows, 0, config.loader_processes), batches):
            objective.losses(to_tensors(batch, torch.device("cpu")), generator)
    return squares.means()


def quantize(source: Path, target: Path, kind: str, importance: dict[str, np.ndarray]) -> None:
    """Writes one file. With an empty `importance` it equals the output of `llama-quantize`."""
    import llama_cpp.llama_cpp as api

    params = api.llama_model_quantize_default_params()
    params.ftype, params.nthread = getattr(api, f"LLAMA_FTYPE_MOSTLY_{kind}"), 1
    entries = (api.llama_model_imatrix_data * (len(importance) + 1))()  # terminated by an empty entry
    for entry, (name, values) in zip(entries, importance.items(), strict=False):
        entry.name, entry.size = name.encode(), values.size
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    if importance:
        params.imatrix = entries
    if api.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)):
        raise SystemExit(f"{source} cannot be quantized")
    print(f"{target}  {target.stat().st_size / 2**20:.2f} MiB", flush=True)


def main() -> None:
    """Measures the importance and writes the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("root", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--config", default="tiny")
    parser.add_argument("--batches", type=int, default=64)
    options = parser.parse_args()
    importance = importance_matrix(options.model, options.root, options.config, options.batches)
    options.output.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        quantize(options.model, options.output / f"{kind}.gguf", kind, {})
        quantize(options.model, options.output / f"{kind}-importance.gguf", kind, importance)


if __name__ == "__main__":
    main()
