"""The training loop, the configuration of dg-mini, and checkpoints.

A run stops at a planned time. A resumed run continues optimizers, data and noise where they were; there is no new
warm-up.
"""

import copy
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.config as dynamo
from torch import Tensor, nn

from dg_training.documents import NUM_SENTINELS
from dg_training.export import ExportMetadata, read_model, training_progress
from dg_training.iq4_nl import RoundedWeights, round_matrices
from dg_training.network import DiffusionNetwork, NetworkConfig
from dg_training.objective import (
    Objective,
    ObjectiveConfig,
    to_tensors,
    validate,
    validation_batches,
    without_canvases,
)
from dg_training.rows import BatchLoader, LoaderState, RowConfig
from dg_training.store import replacing

VALIDATION_TOKENS = 16_384  # so that a validation takes less than 3 % of the time between two checkpoints
REPORT_STEPS = 20
LOSS_NAMES = ("next_token", "middle", "content", "fill")  # of a report
Show = Callable[[dict[str, Any]], None]
MAX_GRAPHS = 64  # of a block, which is compiled for every canvas length


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """Muon on the matrices, AdamW on the rest, which is the embedding and the norms; one learning rate for both."""

    learning_rate: float = 3e-3
    weight_decay: float = 0.05
    clip: float = 1.0
    warmup_steps: int = 60
    decay_from: float = 0.6  # share of the planned time; flat before, linear to zero after
    ema_decay: float = 0.995
    has_muon: bool = True  # False: AdamW on all weights


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Every number of a run."""

    name: str
    network: NetworkConfig
    rows: RowConfig
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    causal_share: float = 0.5  # share of the steps without canvases: half the cost, the same weights
    causal_until: float = 0.6  # share of the planned time after which all steps have canvases
    minutes: float = 120.0
    checkpoint_minutes: float = 4.0
    seed: int = 1
    loader_processes: int = 1
    has_rounded_weights: bool = False  # trained for a file in IQ4_NL

    def metadata(self, tokens: int, **fields: Any) -> ExportMetadata:
        """What a file of this configuration states after `tokens` of training."""
        prompt_tokens = self.rows.max_prompt + NUM_SENTINELS
        return ExportMetadata(self.name, self.rows.canvas_lengths, prompt_tokens, tokens, **fields)


TINY = TrainConfig(
    "tiny",
    NetworkConfig(width=256, layers=4, heads=4, kv_heads=2, hidden=704),
    RowConfig(num_rows=8, num_clean=384, num_noisy=384, max_middle=64),
)
"""The network of dg-mini, from random weights on CPU cores."""


def build_optimizers(network: nn.Module, config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    """[Muon, AdamW], or AdamW alone, on the weights that are trained.

    Muon's update is scaled to AdamW's root mean square; torch's default scaling is another one.
    """
    named = [(name, p) for name, p in network.named_parameters() if p.requires_grad]
    matrices = [p for name, p in named if p.ndim == 2 and "embd" not in name]
    rest = [p for name, p in named if p.ndim != 2 or "embd" in name]
    rate, decay = config.learning_rate, config.weight_decay
    options: dict[str, Any] = {"lr": rate, "betas": (0.9, 0.95), "fused": True}
    if config.has_muon:
        muon = torch.optim.Muon(matrices, lr=rate, weight_decay=decay, momentum=0.95, adjust_lr_fn="match_rms_adamw")
        return [muon, torch.optim.AdamW(rest, weight_decay=0.0, **options)]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]
    return [torch.optim.AdamW(groups, **options)]


def learning_rate(config: OptimizerConfig, step: int, share: float) -> float:
    """The rate after `step` steps and a `share` of the planned time: warm-up, flat, linear to zero."""
    warmup = min(1.0, (step + 1) / config.warmup_steps)
    decay = (1.0 - share) / (1.0 - config.decay_from)
    return config.learning_rate * max(0.0, min(warmup, decay))


@dataclass(slots=True)
class TrainingProgress:
    """Counters of a run."""

    step: int = 0
    tokens: int = 0  # clean tokens, padding included
    seconds: float = 0.0  # of training, over all parts of the run


class Trainer:
    """A network with its optimizers, data and noise."""

    def __init__(
        self,
        root: Path,
        config: TrainConfig,
        *,
        device: str = "cpu",
        network: DiffusionNetwork | None = None,
    ) -> None:
        """Starts with random weights, or with those of `network`."""
        torch.manual_seed(config.seed)
        torch.set_float32_matmul_precision("high")
        self.root = root
        self.config = config
        self.device = torch.device(device)
        self.rows = config.rows
        self.network = (network or DiffusionNetwork(config.network)).to(self.device)
        self.average = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizers = build_optimizers(self.network, config.optimizer)
        self.rounding = RoundedWeights(self.network) if config.has_rounded_weights else None
        self.generator = torch.Generator(self.device).manual_seed(config.seed)
        self.progress = TrainingProgress()
        self.loader_state: LoaderState | None = None
        if self.device.type == "cuda":  # compiled blocks are no faster on a CPU
            dynamo.recompile_limit = max(MAX_GRAPHS, dynamo.recompile_limit)
            for block in self.network.blk:
                block.compile(dynamic=False)
        self.objective = Objective(self.network, config.objective)
        num_validation = max(1, VALIDATION_TOKENS // (self.rows.num_rows * self.rows.num_clean))
        self.validation = validation_batches(root, self.rows, self.device, num_validation)
        if config.causal_share == 1.0:
            self.validation = list(map(without_canvases, self.validation))
        self.dtype = fastest_dtype(config.network, self.device)
        self.validation_seconds = 0.0  # of the latest validation
        self.recent: list[Tensor] = []
        self.is_stopped = False

    @contextmanager
    def stopped_by_signal(self) -> Iterator[None]:
        """SIGTERM ends `run` after its current step, with a checkpoint."""

        def stop(*_: object) -> None:
            self.is_stopped = True

        before = signal.signal(signal.SIGTERM, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    @property
    def path(self) -> Path:
        """The checkpoint of this configuration."""
        return self.root / "runs" / f"{self.config.name}.pt"

    def resume(self) -> None:
        """Continue from the checkpoint."""
        saved = load_checkpoint(self.path)
        self.network.load_state_dict(saved["network"])
        self.average.load_state_dict(saved["average"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.progress = TrainingProgress(**saved["progress"])
        generator, loader = saved["streams"]
        self.loader_state = loader and LoaderState(tuple(loader["streams"]), loader["turn"])
        self.generator.set_state(generator)

    def start_from(self, path: Path) -> None:
        """Take the weights of a GGUF file of this configuration, and count its tokens."""
        network = read_model(path, self.config.network)
        self.progress = TrainingProgress(tokens=training_progress(path)[1])
        self.network.load_state_dict(network.state_dict())
        self.average.load_state_dict(network.state_dict())

    def save(self) -> None:
        """Write all that `resume` needs, in 8 bytes a weight."""
        content = {
            "config": asdict(self.config),
            "network": _halved(self.network.state_dict()),
            "average": _halved(self.average.state_dict()),
            "optimizers": [_halved(optimizer.state_dict()) for optimizer in self.optimizers],
            "progress": asdict(self.progress),
            "streams": (self.generator.get_state(), self.loader_state and asdict(self.loader_state)),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.path) as partial:
            torch.save(content, partial)

    def run(
        self,
        show: Show,
        *,
        minutes: float | None = None,
        max_steps: int | None = None,
        on_save: Callable[[], None] = lambda: None,
    ) -> TrainingProgress:
        """Train until the planned time, for `minutes` or `max_steps`, or until `stop`.

        `on_save` is called after each checkpoint, before the validation: if the time is up, only losses are missing.
        `minutes` contain the last validation, if it takes as long as the one before, or as the first step, which
        compiles, but at most a quarter of them. It is left out if they are over.
        """
        config, progress, planned = self.config, self.progress, self.config.minutes * 60
        before, started = progress.seconds, time.monotonic()
        length = minutes * 60 if minutes else float("inf")
        end, first_step = before + length, 0.0
        last_step = progress.step + max_steps if max_steps else None
        next_save, reported = before + config.checkpoint_minutes * 60, before
        loader = BatchLoader(self.root, self.rows, config.seed * 1000, config.loader_processes, self.loader_state)
        with closing(iter(loader)) as batches:
            for batch in batches:
                seconds = before + time.monotonic() - started
                reserve = self.validation_seconds or min(first_step, length / 4)
                until = min(planned, end - reserve)
                progress.seconds = seconds
                if seconds >= until or progress.step == last_step or self.is_stopped:
                    break
                share = progress.seconds / planned
                rate = learning_rate(config.optimizer, progress.step, share)
                tensors = to_tensors(batch, self.device)
                self.step(without_canvases(tensors) if self.is_causal(share) else tensors, rate)
                first_step = first_step or before + time.monotonic() - started - seconds
                self.loader_state = loader.state
                progress.step += 1
                progress.tokens += batch.tokens.size
                if progress.step % REPORT_STEPS == 0:
                    self._report(show, progress.seconds - reported, batch.tokens.size, rate)
                    reported = progress.seconds
                if next_save <= seconds < until - reserve:
                    self._checkpoint(show, on_save)
                    next_save = progress.seconds + config.checkpoint_minutes * 60
        self._checkpoint(show, on_save, is_late=before + time.monotonic() - started >= end)
        return progress

    def _checkpoint(self, show: Show, on_save: Callable[[], None], *, is_late: bool = False) -> None:
        self.save()
        on_save()
        if not (is_late or self.is_stopped):
            self._validate(show)

    def is_causal(self, share: float) -> bool:
        """Whether this step has no canvases. Such steps are spread evenly."""
        before, after = (int(step * self.config.causal_share) for step in (self.progress.step, self.progress.step + 1))
        return share < self.config.causal_until and after > before

    def step(self, batch: dict[str, Tensor], rate: float) -> None:
        """One update of the weights and their average."""
        with self.rounding.step() if self.rounding else nullcontext():
            with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not torch.float32):
                losses = self.objective.losses(batch, self.generator)
            losses.total(self.config.objective).backward()
        pairs = zip(self.network.parameters(), self.average.parameters(), strict=True)
        weights, averages = map(list, zip(*(pair for pair in pairs if pair[0].requires_grad), strict=True))
        torch.nn.utils.clip_grad_norm_(weights, self.config.optimizer.clip)
        for optimizer in self.optimizers:
            for parameters in optimizer.param_groups:
                parameters["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        # the average follows faster at the beginning
        decay = min(self.config.optimizer.ema_decay, (1 + self.progress.step) / (10 + self.progress.step))
        with torch.no_grad():
            torch._foreach_lerp_(averages, weights, 1 - decay)
        self.recent.append(losses.summary())

    def _report(self, show: Show, seconds: float, num_tokens: int, rate: float) -> None:
        losses = [round(loss, 3) for loss in torch.stack(self.recent).nanmean(0).tolist()]
        self.recent.clear()
        speed = round(REPORT_STEPS * num_tokens / seconds)
        left = round(self.config.minutes * 60 - self.progress.seconds)
        progress = {"step": self.progress.step, "tokens": self.progress.tokens, "tokens_per_second": speed}
        show(progress | dict(zip(LOSS_NAMES, losses, strict=True)) | {"rate": round(rate, 6), "seconds_left": left})

    def _validate(self, show: Show) -> None:
        """Losses of the averaged weights, as a file has them."""
        started, progress = time.monotonic(), self.progress
        weights, averages = list(self.network.parameters()), list(self.average.parameters())
        saved = [weight.detach().clone() for weight in weights]
        with torch.no_grad():
            torch._foreach_copy_(weights, averages)  # one set of compiled graphs serves both
        if self.rounding:
            round_matrices(self.network)
        losses = validate(self.objective, self.validation)
        with torch.no_grad():
            torch._foreach_copy_(weights, saved)
        self.validation_seconds = time.monotonic() - started
        show({"step": progress.step, "tokens": progress.tokens, "seconds": round(progress.seconds), **losses})


def fastest_dtype(config: NetworkConfig, device: torch.device) -> torch.dtype:
    """The type of the matrix products: on a CPU the faster one of bfloat16 and float32, by a measurement."""
    if device.type != "cpu":
        return torch.bfloat16

    def seconds(dtype: torch.dtype) -> float:
        states, weight = (
            torch.zeros(512, config.width, dtype=dtype),
            torch.zeros(config.hidden, config.width, dtype=dtype),
        )
        times = []
        for _ in range(8):
            started = time.perf_counter()
            nn.functional.linear(states, weight)
            times.append(time.perf_counter() - started)
        return min(times)

    return min((torch.bfloat16, torch.float32), key=seconds)


def _halved(state: Any) -> Any:
    """The tensors of a state in bfloat16: a checkpoint of 8 bytes a weight instead of 16."""
    if isinstance(state, dict):
        return {key: _halved(value) for key, value in state.items()}
    return state.bfloat16() if isinstance(state, Tensor) and state.ndim and state.is_floating_point() else state


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint. A file with other content than tensors, numbers and texts is refused: it could run code."""
    return dict(torch.load(path, map_location="cpu", weights_only=True))


def checkpoint_network(path: Path) -> tuple[DiffusionNetwork, dict[str, Any]]:
    """The averaged network of a checkpoint in float32, and the fields of its `TrainingProgress`."""
    saved = load_checkpoint(path)
    network = DiffusionNetwork(NetworkConfig(**saved["config"]["network"]))
    network.load_state_dict(saved["average"])
    return network.float().eval(), dict(saved["progress"])
