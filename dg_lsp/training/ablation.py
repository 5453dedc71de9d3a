"""Short runs of a very small network that differ in one number of the recipe. Knows configurations and losses.

Every variant starts from the same weights, sees the same documents and is measured on the same held-out batches under
the same masks, so that differences of a few hundredths of a nat are real; that a bigger network agrees is a guess.
"""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dg_lsp.training.config import NetworkConfig, OptimizerConfig, RowConfig, TrainConfig
from dg_lsp.training.documents import Header
from dg_lsp.training.feed import Feed
from dg_lsp.training.middles import MiddleShares
from dg_lsp.training.objective import Objective, held_out_batches, tensors, validate, without_canvases
from dg_lsp.training.trainer import Trainer

BASE = TrainConfig(
    "nano",
    NetworkConfig(width=128, layers=3, heads=2, kv_heads=1, hidden=352),
    RowConfig(rows=6, num_clean=256, num_noisy=256, max_middle=64),
    OptimizerConfig(warmup_steps=20, ema_decay=0.98),
    causal_share=0.0,
    workers=0,
)
NUM_HELD_OUT = 12  # batches
SHOWN = ("ar_middle", "content", "content_first", "content_full_mask", "content_random_mask", "fill")


@dataclass(frozen=True, slots=True)
class Variant:
    """One change of the recipe; `steps` is the factor that makes it cost as much as the others."""

    name: str
    config: TrainConfig
    steps: float = 1.0
    averaged: bool = True


def variants(base: TrainConfig = BASE) -> tuple[Variant, ...]:
    """The recipe, and what differs from it."""
    return (
        Variant("as trained (base)", base),
        Variant("base, last weights instead of their average", base, averaged=False),
        Variant("half of the steps without canvases, same time", replace(base, causal_share=0.5), steps=4 / 3),
        Variant("slots weighed by 1 / share hidden, at most 5", replace(base, inverse_rate=5.0)),
        Variant("leftmost slots weighed as the others", replace(base, lead_weight=0.0)),
        Variant("fill weighed as content", replace(base, fill_weight=1.0)),
        Variant("next-token loss at 0.3", replace(base, next_weight=0.3)),
        Variant("no canvas with a known left part", replace(base, left_mask=0.0)),
        Variant("6 of 10 canvases with a known left part", replace(base, left_mask=0.6)),
        Variant("half of the canvases all masks", replace(base, full_mask=0.5)),
        Variant("canvases of 8 and 16 only", _of(base, canvas_shares=(0.4, 0.6, 0.0, 0.0))),
        Variant("3 of 4 middles the rest of a line", _of(base, middles=MiddleShares(0.75, 0.10, 0.10, 0.05))),
        Variant("3 of 4 middles spans and blocks", _of(base, middles=MiddleShares(0.15, 0.10, 0.45, 0.30))),
        Variant("half of the rows plain text", _of(base, plain_share=0.5)),
        Variant("the file's path in the prompt", _of(base, header=Header.PATH)),
        Variant("the neighbouring file's beginning in the prompt", _of(base, header=Header.NEIGHBOUR)),
        Variant("half of the middles' canvases with expand and delete", _of(base, resized_share=0.5)),
        Variant("canvases of 32 and 64 only", _of(base, canvas_shares=(0.0, 0.0, 0.6, 0.4))),
    )


def _of(base: TrainConfig, **rows: Any) -> TrainConfig:
    return replace(base, rows=replace(base.rows, **rows))


def ablate(root: Path, steps: int, chosen: tuple[Variant, ...] = ()) -> Iterator[tuple[Variant, dict[str, float]]]:
    """Trains every variant for `steps` steps of the base's cost; held-out losses in nats, and seconds."""
    held_out = {}
    for variant in chosen or variants():
        header = variant.config.rows.header
        if header not in held_out:  # a prompt that says more has to say so there, too
            held_out[header] = held_out_batches(root, _of(BASE, header=header), torch.device("cpu"), NUM_HELD_OUT)
        started = time.monotonic()
        trainer = Trainer(root, variant.config, compiled=False)
        _train(trainer, round(steps * variant.steps))
        network = trainer.average if variant.averaged else trainer.network
        losses = validate(Objective(network, BASE, compiled=False), held_out[header])
        yield variant, losses | {"seconds": time.monotonic() - started}


def _train(trainer: Trainer, steps: int) -> None:
    """By steps, not by time: the rate's decay must not depend on who else uses the machine."""
    config, progress = trainer.config, trainer.progress
    decays = config.optimizer.decay_from
    with closing(Feed(trainer.root, config)) as feed:
        for batch in feed:
            share = progress.step / steps
            if share >= 1:
                return
            scale = min(1.0, (progress.step + 1) / config.optimizer.warmup_steps, (1 - share) / (1 - decays))
            arrays = tensors(batch, trainer.device)
            if trainer.is_causal(share):
                arrays = without_canvases(arrays)
            trainer.step(arrays, config.optimizer.learning_rate * scale)
            progress.step += 1


def rows(results: Iterator[tuple[Variant, dict[str, float]]]) -> Iterator[str]:
    """A Markdown table, a line as soon as it is known."""
    yield "| variant | " + " | ".join(SHOWN) + " | s |"
    yield "|---" * (len(SHOWN) + 2) + "|"
    for variant, losses in results:
        cells = [f"{losses[name]:.3f}" for name in SHOWN] + [f"{losses['seconds']:.0f}"]
        yield f"| {variant.name} | " + " | ".join(cells) + " |"
