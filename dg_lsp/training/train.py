"""The training loop, its configurations and checkpoints.

A run stops at a planned time. A resumed run continues optimizers, data and noise where they were; there is no new
warm-up.
"""

import copy
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch._dynamo.config as dynamo
import torch.distributed as dist
from rich.console import Console
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes

from dg_lsp.training.export import read_model
from dg_lsp.training.network import DiffusionNetwork, NetworkConfig
from dg_lsp.training.objective import (
    Objective,
    ObjectiveConfig,
    to_tensors,
    validate,
    validation_batches,
    without_canvases,
)
from dg_lsp.training.rows import BatchLoader, RowConfig

NUM_VALIDATION = 10  # batches
REPORT_STEPS = 20
MAX_GRAPHS = 64  # blocks are compiled for every canvas length, with and without gradients


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """Muon on the matrices, AdamW on the embedding and the norms; one learning rate for both."""

    learning_rate: float = 3e-3
    weight_decay: float = 0.05
    clip: float = 1.0
    warmup_steps: int = 60
    decay_from: float = 0.6  # share of the planned time; flat before, linear to zero after
    ema_decay: float = 0.995


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


CONFIGS = {
    "tiny": TrainConfig(
        "tiny",
        NetworkConfig(width=256, layers=4, heads=4, kv_heads=2, hidden=704),
        RowConfig(num_rows=8, num_clean=384, num_noisy=384, max_middle=64),
    ),
    "mini": TrainConfig(
        "mini",
        NetworkConfig(width=512, layers=10, heads=8, kv_heads=4, hidden=1408),
        RowConfig(num_rows=64, num_clean=768, num_noisy=768, max_middle=128, max_copies=6),
        OptimizerConfig(warmup_steps=300, ema_decay=0.999),
        minutes=25.0,
        loader_processes=14,
    ),
}
"""`tiny` trains on CPU cores, `mini` on one GPU."""


def build_optimizers(network: nn.Module, config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    """[Muon, AdamW]. Muon's update is scaled to AdamW's root mean square; torch's default scaling is another one."""
    is_cuda = next(network.parameters()).is_cuda
    named = list(network.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embedding" not in name]
    rest = [p for name, p in named if p.ndim != 2 or "embedding" in name]
    rate, decay = config.learning_rate, config.weight_decay
    muon = torch.optim.Muon(matrices, lr=rate, weight_decay=decay, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=is_cuda, foreach=not is_cuda)
    return [muon, adamw]


def learning_rate(config: OptimizerConfig, step: int, share: float) -> float:
    """The rate after `step` steps and a `share` of the planned time: warm-up, flat, linear to zero."""
    warmup = min(1.0, (step + 1) / config.warmup_steps)
    decay = (1.0 - share) / (1.0 - config.decay_from)
    return config.learning_rate * max(0.0, min(warmup, decay))


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Data-parallel processes that train one network and exchange only gradients.

    On a busy CPU, threads that wait for each other at every operation run at a fifth of the speed (measured).
    """

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process reports, validates and saves."""
        return self.rank == 0

    def average_gradients(self, weights: list[Tensor]) -> None:
        """Replace the gradients of every process by their mean, in place."""
        if self.size == 1:
            return
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        parts = flat.div_(self.size).split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [part.view_as(g) for part, g in zip(parts, gradients, strict=True)])

    def broadcast(self, value: float) -> float:
        """The first process's value."""
        if self.size == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(shared, 0)
        return float(shared)

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes on the first one, an empty list elsewhere."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.gather_object(value, values if self.is_first else None, 0)
        return values if self.is_first else []


@dataclass(slots=True)
class TrainingProgress:
    """Counters of a run."""

    step: int = 0
    tokens: int = 0  # clean tokens, padding included
    seconds: float = 0.0  # of training, over all parts of the run
    log: list[dict[str, Any]] = field(default_factory=list)  # validations


@dataclass(frozen=True, slots=True)
class StepReport:
    """The last steps; losses in nats."""

    step: int
    tokens: int
    tokens_per_second: float
    next_token: float
    content: float
    fill: float
    learning_rate: float
    seconds: float
    seconds_left: float

    def __str__(self) -> str:
        left = timedelta(seconds=max(0, round(self.seconds_left)))
        return (
            f"step {self.step}  {self.tokens / 1e6:.2f} M tokens  "
            f"content {self.content:.3f}  fill {self.fill:.3f}  next token {self.next_token:.3f}  "
            f"{self.tokens_per_second:,.0f} tokens/s  rate {self.learning_rate:.2e}  left {left}"
        )


Show = Callable[[StepReport | dict[str, Any]], None]


class Trainer:
    """A network with its optimizers, data and noise."""

    def __init__(
        self,
        root: Path,
        config: TrainConfig,
        *,
        device: str = "cpu",
        compiled: bool = True,
        group: ProcessGroup = ProcessGroup(),
    ) -> None:
        torch.manual_seed(config.seed)
        torch.set_float32_matmul_precision("high")
        self.root, self.config, self.device, self.group = root, config, torch.device(device), group
        self.network = DiffusionNetwork(config.network).to(self.device)
        self.average = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizers = build_optimizers(self.network, config.optimizer)
        self.generator = torch.Generator(self.device).manual_seed(config.seed + group.rank)
        self.progress = TrainingProgress()
        self.loader_state: Any = None
        if compiled:
            dynamo.recompile_limit = max(MAX_GRAPHS, dynamo.recompile_limit)
            for block in self.network.blocks:
                block.compile(dynamic=False)
        self.objective = Objective(self.network, config.objective, compiled=compiled)
        self.validation = validation_batches(root, config.rows, self.device, NUM_VALIDATION)
        self.recent: list[Tensor] = []

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
        if self.group.rank < len(saved["streams"]):
            generator, self.loader_state = saved["streams"][self.group.rank]
            self.generator.set_state(generator)

    def start_from(self, path: Path) -> None:
        """Take the weights of a GGUF file of this configuration."""
        network, self.progress.tokens = read_model(path, self.config.network)
        self.network.load_state_dict(network.state_dict())
        self.average.load_state_dict(network.state_dict())

    def save(self) -> None:
        """Write all that `resume` needs. Every process of the group must call it."""
        streams = self.group.gather((self.generator.get_state(), self.loader_state))
        if not self.group.is_first:
            return
        content = {
            "config": asdict(self.config),
            "network": self.network.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "progress": asdict(self.progress),
            "streams": streams,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(self.path.name + ".partial")
        torch.save(content, partial)
        partial.replace(self.path)

    def run(self, show: Show, *, minutes: float | None = None, max_steps: int | None = None) -> TrainingProgress:
        """Train until the planned time, or for `minutes` or `max_steps`."""
        config, progress, planned = self.config, self.progress, self.config.minutes * 60
        before, started = progress.seconds, time.monotonic()
        until = min(planned, before + minutes * 60) if minutes else planned
        last_step = progress.step + max_steps if max_steps else None
        next_save = before + config.checkpoint_minutes * 60
        reported = before
        seed = config.seed * 1000 + self.group.rank * 100
        loader = BatchLoader(self.root, config.rows, seed, config.loader_processes, self.loader_state)
        with closing(loader):
            for batch in loader:
                progress.seconds = self.group.broadcast(before + time.monotonic() - started)
                if progress.seconds >= until or progress.step == last_step:
                    break
                share = progress.seconds / planned
                rate = learning_rate(config.optimizer, progress.step, share)
                tensors = to_tensors(batch, self.device)
                self.step(without_canvases(tensors) if self.is_causal(share) else tensors, rate)
                self.loader_state = loader.state
                progress.step += 1
                num_tokens = batch.tokens.size * self.group.size
                progress.tokens += num_tokens
                if progress.step % REPORT_STEPS == 0:
                    speed = REPORT_STEPS * num_tokens / (progress.seconds - reported)
                    reported = progress.seconds
                    self._report(show, speed, rate)
                if progress.seconds >= next_save:
                    self._validate_and_save(show)
                    next_save = progress.seconds + config.checkpoint_minutes * 60
        self._validate_and_save(show)
        return progress

    def is_causal(self, share: float) -> bool:
        """Whether this step has no canvases. Such steps are spread evenly, the same way in every process."""
        before, after = (int(step * self.config.causal_share) for step in (self.progress.step, self.progress.step + 1))
        return share < self.config.causal_until and after > before

    def step(self, batch: dict[str, Tensor], rate: float) -> None:
        """One update of the weights and their average."""
        with torch.autocast(self.device.type, torch.bfloat16):
            losses = self.objective.losses(batch, self.generator)
        losses.total(self.config.objective).backward()
        weights = list(self.network.parameters())
        self.group.average_gradients(weights)
        torch.nn.utils.clip_grad_norm_(weights, self.config.optimizer.clip)
        for optimizer in self.optimizers:
            for parameters in optimizer.param_groups:
                parameters["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        # the average follows faster at the beginning
        decay = min(self.config.optimizer.ema_decay, (1 + self.progress.step) / (10 + self.progress.step))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.parameters()), weights, 1 - decay)
        self.recent.append(losses.summary())

    def _report(self, show: Show, speed: float, rate: float) -> None:
        next_token, content, fill = torch.stack(self.recent).nanmean(0).tolist()
        self.recent.clear()
        p, left = self.progress, self.config.minutes * 60 - self.progress.seconds
        if self.group.is_first:
            show(StepReport(p.step, p.tokens, speed, next_token, content, fill, rate, p.seconds, left))

    def _validate_and_save(self, show: Show) -> None:
        """The other processes wait at their next step."""
        if self.group.is_first:
            losses: dict[str, Any] = dict(validate(self.objective, self.validation))
            with self._averaged():
                losses["average"] = validate(self.objective, self.validation)
            p = self.progress
            p.log.append({"step": p.step, "tokens": p.tokens, "seconds": round(p.seconds), **losses})
            show(p.log[-1])
        self.save()

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """The averaged weights in the network: one set of compiled graphs serves both."""
        weights, averages = list(self.network.parameters()), list(self.average.parameters())
        saved = [weight.detach().clone() for weight in weights]
        with torch.no_grad():
            torch._foreach_copy_(weights, averages)
            yield
            torch._foreach_copy_(weights, saved)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint. Unpickling it can run code: load only files that you trust."""
    return dict(torch.load(path, map_location="cpu", weights_only=False))


def checkpoint_network(path: Path, *, averaged: bool) -> tuple[DiffusionNetwork, int]:
    """The network of a checkpoint in float32, and the tokens it was trained on."""
    saved = load_checkpoint(path)
    network = DiffusionNetwork(NetworkConfig(**saved["config"]["network"]))
    network.load_state_dict(saved["average" if averaged else "network"])
    return network.float().eval(), int(saved["progress"]["tokens"])


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """The options of the command `train`."""

    root: Path
    config: TrainConfig
    device: str
    minutes: float | None = None  # of this part
    start: Path | None = None
    resume: bool = False
    threads: int = 0

    def run(self, group: ProcessGroup) -> None:
        """Train until the plan is over, as one process of a group."""
        if self.threads:
            torch.set_num_threads(self.threads)
        rows = replace(self.config.rows, num_rows=self.config.rows.num_rows // group.size)
        trainer = Trainer(self.root, replace(self.config, rows=rows), device=self.device, group=group)
        if self.start:
            trainer.start_from(self.start)
        if self.resume:
            trainer.resume()
        with shown(Console(quiet=not group.is_first)) as show:
            trainer.run(show, minutes=self.minutes)


def run_in_processes(run: TrainingRun, num: int) -> None:
    """Train with several processes on the CPU of this machine."""
    with TemporaryDirectory() as folder:
        arguments = (num, Path(folder) / "rendezvous", run)
        start_processes(_run_process, args=arguments, nprocs=num, start_method="spawn")


def _run_process(rank: int, size: int, rendezvous: Path, run: TrainingRun) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size)
    run.run(ProcessGroup(rank, size))


@contextmanager
def shown(console: Console) -> Iterator[Show]:
    """A function that prints reports and validations; in a terminal a report replaces the one before it."""
    with console.status("first batch") as status:

        def show(item: StepReport | dict[str, Any]) -> None:
            text = str(item) if isinstance(item, StepReport) else json.dumps(item)
            if isinstance(item, StepReport) and console.is_terminal:
                status.update(text)
            else:
                console.print(text, soft_wrap=True, highlight=False)

        yield show
