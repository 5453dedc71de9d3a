"""Finished weights: what an export or an evaluation needs of a run, without optimizers."""

from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from dg_lsp.training import checkpoint
from dg_lsp.training.config import CONFIGS, NetworkConfig, TrainConfig
from dg_lsp.training.gguf_file import read_gguf
from dg_lsp.training.network import Network
from dg_lsp.training.pieces import split, whole


@dataclass(frozen=True, slots=True)
class Weights:
    """A network in float32 with what is known of its training."""

    network: Network
    config: TrainConfig
    tokens_seen: int


def weights_of(run: Path, *, averaged: bool) -> Weights:
    """The weights of a run's checkpoint, or of a file that `write_weights` made (joined from pieces if need be)."""
    saved = checkpoint.load(whole(run))
    network = Network(NetworkConfig(**saved["config"]["network"]))
    network.load_state_dict(saved["average" if averaged and "average" in saved else "network"])
    config = CONFIGS[saved["config"]["name"]]
    return Weights(network.float().eval(), config, int(saved["progress"]["tokens"]))


def from_gguf(path: Path, config: TrainConfig) -> Weights:
    """The weights of a finished file; quantized ones come back as they are used."""
    state, tokens_seen = read_gguf(path, config.network)
    network = Network(config.network)
    network.load_state_dict(state)
    return Weights(network.eval(), config, tokens_seen)


def write_weights(path: Path, weights: Weights) -> list[Path]:
    """bfloat16 weights in one file, and the same in pieces that are small enough to carry; returns the pieces."""
    state = {name: w.to(torch.bfloat16) for name, w in weights.network.state_dict().items()}
    config = {"name": weights.config.name, "network": asdict(weights.network.config)}
    checkpoint.save(path, {"config": config, "network": state, "progress": {"tokens": weights.tokens_seen}})
    return split(path)
