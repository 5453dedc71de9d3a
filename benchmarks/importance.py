"""Quantizes a float16 GGUF of the bundled model's kind with an importance matrix, and without.

    python benchmarks/importance.py MODEL-f16.gguf TRAINING-ROOT OUTPUT-FOLDER [--config tiny] [--batches 64]

The importance of a matrix's column is the mean square of what it is multiplied by, over rows of the training data with
their canvases, as llama.cpp's own tool takes it from text; that tool knows no canvas. Then exact match says what it
brings: `dg-lsp bench infill SITES --model FILE`.
"""

import argparse
import ctypes
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dg_lsp.training.config import CONFIGS
from dg_lsp.training.feed import Feed
from dg_lsp.training.gguf_file import TENSORS, read_gguf
from dg_lsp.training.network import Network
from dg_lsp.training.objective import Objective, tensors

KINDS = ("Q4_K_M", "Q5_K_M", "Q4_0")


class Squares:
    """Sums of squares by column, for every linear layer."""

    def __init__(self, network: nn.Module) -> None:
        self.sums: dict[str, Tensor] = {}
        self.num_rows: dict[str, int] = {}
        for name, layer in network.named_modules():
            if isinstance(layer, nn.Linear):
                layer.register_forward_pre_hook(self._hook(name))

    def _hook(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def note(_layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            rows = given[0].detach().float().flatten(0, -2)
            self.sums[name] = self.sums.get(name, torch.zeros(rows.shape[1])) + rows.square().sum(0)
            self.num_rows[name] = self.num_rows.get(name, 0) + len(rows)

        return note

    def means(self) -> dict[str, np.ndarray]:
        """By the names of the file's tensors, float32."""
        found = {}
        for name, total in self.sums.items():
            _, block, ours = name.split(".")
            found[f"blk.{block}.{TENSORS[ours]}.weight"] = (total / self.num_rows[name]).numpy().astype(np.float32)
        return found


def measured(model: Path, root: Path, config_name: str, batches: int) -> dict[str, np.ndarray]:
    """Importance by tensor."""
    config = CONFIGS[config_name]
    weights, _ = read_gguf(model, config.network)
    network = Network(config.network)
    network.load_state_dict(weights)
    objective = Objective(network, config, compiled=False)
    squares, generator = Squares(network), torch.Generator().manual_seed(0)
    with torch.no_grad(), closing(Feed(root, config)) as feed:
        for number, batch in enumerate(feed):
            if number == batches:
                break
            objective.losses(tensors(batch, torch.device("cpu")), generator)
    return squares.means()


def quantize(source: Path, target: Path, kind: str, importance: dict[str, np.ndarray]) -> None:
    """One file; without importance as `llama-quantize` does it."""
    import llama_cpp.llama_cpp as api

    params = api.llama_model_quantize_default_params()
    params.ftype, params.nthread = getattr(api, f"LLAMA_FTYPE_MOSTLY_{kind}"), 1
    entries = (api.llama_model_imatrix_data * (len(importance) + 1))()  # the last one, of zeros, ends it
    for entry, (name, values) in zip(entries, importance.items(), strict=False):
        entry.name, entry.size = name.encode(), values.size
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    if importance:
        params.imatrix = entries
    if api.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)):
        raise SystemExit(f"{source} could not be quantized")
    print(f"{target}  {target.stat().st_size / 2**20:.2f} MiB", flush=True)


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("root", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--config", default="tiny")
    parser.add_argument("--batches", type=int, default=64)
    given = parser.parse_args()
    importance = measured(given.model, given.root, given.config, given.batches)
    given.output.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        quantize(given.model, given.output / f"{kind}.gguf", kind, {})
        quantize(given.model, given.output / f"{kind}-importance.gguf", kind, importance)


if __name__ == "__main__":
    main()
