"""Adapts a pretrained causal model: a pruned vocabulary, fill-in-the-middle and block diffusion.

A prompt stays causal and a position predicts the next token as before, so the model decodes autoregressively all the
time. A canvas is bidirectional; its first position is predicted by the last token of the prompt, which sees no canvas,
so that the guess is the causal model's own.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dg_lsp.errors import InputFileError
from dg_lsp.training.export import write_model
from dg_lsp.training.network import DiffusionNetwork
from dg_lsp.training.objective import ObjectiveConfig
from dg_lsp.training.pretrained import Origin, Pretrained, read_pretrained
from dg_lsp.training.rows import RowConfig
from dg_lsp.training.store import read_texts, tokenize_splits
from dg_lsp.training.tokenizer import END_OF_TEXT, SPECIAL_TOKENS, PrunedVocabulary, count_tokens, prune, restrict
from dg_lsp.training.train import CONFIGS, OptimizerConfig, TrainConfig, Trainer

MAX_TOKENS = 65_536
"""Largest vocabulary: token ids of the corpus are stored in 16 bits."""
KEPT = "kept.npy"  # ids of the source in a pruned vocabulary
COUNTED_CHARS = 20_000_000  # of the corpus, by which the most frequent tokens are found
CONFIDENCE_THRESHOLD = 0.9
LORA_SCALE = 2.0  # of the product of both low-rank matrices
CPU_ROWS = RowConfig(
    num_rows=2, num_clean=256, num_noisy=128, max_middle=48, canvas_lengths=(8, 16), canvas_shares=(0.5, 0.5)
)
GPU_ROWS = replace(CONFIGS["mini"].rows, num_rows=16)
Show = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class AdaptOptions:
    """How a model is adapted."""

    minutes: float = 60.0
    max_steps: int | None = None  # 0: prune and export only
    num_tokens: int = 32_768  # of the pruned vocabulary
    rank: int = 0  # of low-rank matrices; 0: all weights are trained
    learning_rate: float | None = None
    licence: str = ""  # instead of the one that the checkpoint states
    file_type: str = "Q8_0"
    device: str = "cpu"
    is_resumed: bool = False
    rows: RowConfig | None = None


def adapt(checkpoint: Path, root: Path, out: Path, options: AdaptOptions, show: Show) -> None:
    """Prunes, trains and exports; the corpus is in `root`, the state of the run in `root/adapted/NAME`.

    Raises:
        InputFileError: the corpus or the checkpoint is missing, or the checkpoint states no licence.
        ModelError: the checkpoint is damaged or not supported.
    """
    model = read_pretrained(checkpoint)
    origin = model.origin if not options.licence else Origin(model.origin.name, options.licence)
    if not origin.licence:
        raise InputFileError(f"{checkpoint} states no licence: pass --licence with the identifier of the model's card")
    folder = root / "adapted" / out.stem
    if options.is_resumed:
        pruned = prepared_corpus(model, folder)
    else:
        pruned = prepare_corpus(model, root, folder, options.num_tokens)
    num_tokens = len(pruned.source_ids)
    show({"vocabulary": num_tokens, "of": len(model.vocabulary.tokens), "name": origin.name, "licence": origin.licence})
    config = train_config(model, num_tokens, options)
    network, num_seen = model.network(pruned), 0
    if options.max_steps != 0:
        if options.rank:
            add_adapters(network, options.rank)
        is_cuda = options.device.startswith("cuda")
        trainer = Trainer(folder, config, device=options.device, compiled=is_cuda, network=network)
        if options.is_resumed:
            trainer.resume()
        progress = trainer.run(show, max_steps=options.max_steps)
        network, num_seen = copy.deepcopy(trainer.average), progress.tokens
        merge_adapters(network)
    metadata = config.metadata(
        num_seen,
        name=f"{origin.name} dg",
        description=f"{origin.name}, adapted to fill code by block diffusion; vocabulary pruned to {num_tokens} tokens",
        origin=origin,
        context_length=model.context_length,
        repetition_match=0,
        is_shifted=True,
        start_ids=config.rows.start_ids,
        confidence_threshold=CONFIDENCE_THRESHOLD,
    )
    write_model(out, network, pruned.vocabulary, metadata, options.file_type)
    out.with_suffix(".md").write_text(model_card(origin, checkpoint, num_tokens, num_seen), encoding="utf-8")


def prepare_corpus(model: Pretrained, root: Path, folder: Path, num_tokens: int) -> PrunedVocabulary:
    """The pruned vocabulary by the corpus of `root`, and that corpus in its tokens in `folder`."""
    files = read_texts(root / "train.jsonl.xz")
    stride = max(1, sum(len(file.text) for file in files) // COUNTED_CHARS)
    counts = count_tokens(model.vocabulary.tokenizer(), (file.text for file in files[::stride]))
    pruned = prune(model.vocabulary, counts, min(num_tokens, MAX_TOKENS))
    folder.mkdir(parents=True, exist_ok=True)
    pruned.vocabulary.tokenizer().save(str(folder / "tokenizer.json"))
    tokenize_splits(folder, texts=root)
    np.save(folder / KEPT, pruned.source_ids[len(SPECIAL_TOKENS) :])
    return pruned


def prepared_corpus(model: Pretrained, folder: Path) -> PrunedVocabulary:
    """The pruned vocabulary of a run that was begun; InputFileError if there is none."""
    if not (folder / KEPT).exists():
        raise InputFileError(f"there is no run in {folder}: leave out --resume")
    return restrict(model.vocabulary, np.load(folder / KEPT).tolist())


def train_config(model: Pretrained, num_tokens: int, options: AdaptOptions) -> TrainConfig:
    """The configuration of a run."""
    start_ids = () if model.vocabulary.start_id is None else (END_OF_TEXT,)
    rows = options.rows or (GPU_ROWS if options.device.startswith("cuda") else CPU_ROWS)
    rate = options.learning_rate or (5e-4 if options.rank else 1e-4)
    return TrainConfig(
        "adapt",
        replace(model.config, num_tokens=num_tokens),
        replace(rows, start_ids=start_ids),
        OptimizerConfig(rate, weight_decay=0.01, warmup_steps=10, ema_decay=0.99, has_muon=False),
        ObjectiveConfig(is_shifted=True),
        causal_share=0.0,
        minutes=options.minutes,
    )


# low-rank adaptation (Hu et al., arXiv 2106.09685): few trained weights beside frozen ones, merged for export


class _LowRank(nn.Module):
    """Adds a trained product of rank `rank`, zero at first, to a frozen matrix."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(rank, weight.shape[1], device=weight.device) * weight.shape[1] ** -0.5)
        self.b = nn.Parameter(torch.zeros(weight.shape[0], rank, device=weight.device))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + LORA_SCALE * (self.b @ self.a)


class _FirstRows(nn.Module):
    """Replaces the rows of the special tokens by trained ones."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.rows = nn.Parameter(weight[: len(SPECIAL_TOKENS)].detach().clone())

    def forward(self, weight: Tensor) -> Tensor:
        return torch.cat([self.rows, weight[len(self.rows) :]])


def add_adapters(network: DiffusionNetwork, rank: int) -> None:
    """Freezes all weights; adds a low-rank matrix to every matrix of the blocks, and trains the special tokens."""
    network.requires_grad_(False)
    for module in list(network.blk.modules()):
        if isinstance(module, nn.Linear):
            parametrize.register_parametrization(module, "weight", _LowRank(module.weight, rank))
    for table in _vocabulary_matrices(network):
        parametrize.register_parametrization(table, "weight", _FirstRows(cast(Tensor, table.weight)))


def merge_adapters(network: DiffusionNetwork) -> None:
    """Makes the adapted matrices plain ones, in place; does nothing without adapters."""
    for module in list(network.modules()):
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)


def _vocabulary_matrices(network: DiffusionNetwork) -> list[nn.Module]:
    return [network.token_embd, *([network.output] if network.output is not None else [])]


# the card

_TERMS = {
    "apache-2.0": (
        "You may use, change and pass on this file, with a copy of the Apache Licence 2.0, the notices of the original "
        "and a note that it was changed."
    ),
    "mit": "You may use, change and pass on this file, with the copyright notice of the original and its licence.",
    "gemma": (
        "This file is a Model Derivative under the Gemma Terms of Use, which are not an open source licence. If you "
        "pass it on, pass on a copy of these terms with the restrictions of section 3.2, state that the model was "
        'changed, and add a file `NOTICE` with the text "Gemma is provided under and subject to the Gemma Terms of Use '
        'found at ai.google.dev/gemma/terms".'
    ),
}


def model_card(origin: Origin, checkpoint: Path, num_tokens: int, num_seen: int) -> str:
    """What the file is, and what may be done with it."""
    terms = _TERMS.get(origin.licence.lower(), "Read the licence of the original before you pass on this file.")
    named = " ".join(part for part in (origin.licence, origin.licence_name, origin.licence_link) if part)
    return (
        f"# {origin.name} dg\n\nMade from `{checkpoint.name}` ({origin.name}) with `python -m dg_lsp.training adapt`. "
        f"Its vocabulary is pruned to {num_tokens} tokens. It is trained on {num_seen} tokens of Python to fill in the "
        f"middle and to denoise a canvas.\n\nLicence: {named}. {terms}\n"
    )
