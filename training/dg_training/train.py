"""The training loop and its checkpoints.

A run stops at a planned time. A resumed run continues the optimizer and the noise where they were, with other
documents; there is no new warm-up.
"""

import copy
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from timeit import repeat
from typing import Any

import torch
import torch._dynamo.config as dynamo
from torch import Tensor, nn

from dg_lsp.system import replacement
from dg_training.iq4_nl import RoundedWeights, round_matrices
from dg_training.network import DiffusionNetwork, NetworkConfig
from dg_training.objective import Objective, mean_losses, to_tensors, validate, validation_batches, without_canvases
from dg_training.pretrained import TrainingProgress
from dg_training.rows import RowSource

VALIDATION_TOKENS = 16_384  # so that a validation takes less than 3 % of the time between two checkpoints
REPORT_STEPS = 20
Show = Callable[[dict[str, Any]], None]
MAX_GRAPHS = 64  # of a block, which is compiled for every canvas length
WARMUP_STEPS = 20
DECAY_FROM = 0.8  # share of the planned time; the rate is constant before, and falls to zero after it
WEIGHT_DECAY = 0.01  # of matrices
MAX_GRADIENT = 1.0
EMA_DECAY = 0.99
SEED = 1
GPU_LOADERS = 8  # processes that make batches: one tokenizes slower than a GPU trains


@dataclass(frozen=True, slots=True)
class AdaptOptions:
    """How a model is adapted."""

    minutes: float = 60.0  # planned
    max_steps: int | None = None  # 0: export only
    num_tokens: int = 32_768  # of the pruned vocabulary
    learning_rate: float = 2e-4
    is_causal: bool = False  # no canvases; otherwise half of the steps have canvases, which double the cost of a step
    name: str = ""  # of the file; default: the checkpoint's
    licence: str = ""  # instead of the one that the checkpoint states
    file_type: str = "Q8_0"  # IQ4_NL: trained for it
    device: str = "cpu"
    checkpoint_minutes: float = 15.0
    is_resumed: bool = False  # from the state of the run
    is_continued: bool = False  # the checkpoint is of this run, and so is its place in the planned time


def build_optimizer(network: nn.Module, rate: float) -> torch.optim.AdamW:
    """AdamW; embedding and norms do not decay."""
    named = list(network.named_parameters())
    matrices = [weight for name, weight in named if weight.ndim == 2 and "embd" not in name]
    others = [weight for name, weight in named if weight.ndim != 2 or "embd" in name]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True)


def learning_rate(largest: float, step: int, share: float) -> float:
    """The rate after `step` steps and a `share` of the planned time: warm-up, constant, linear to zero."""
    warmup = min(1.0, (step + 1) / WARMUP_STEPS)
    decay = (1.0 - share) / (1.0 - DECAY_FROM)
    return largest * max(0.0, min(warmup, decay))


class Trainer:
    """A network with its optimizer, data and noise."""

    def __init__(self, path: Path, source: RowSource, options: AdaptOptions, network: DiffusionNetwork) -> None:
        """Prepares a run whose checkpoint is `path`."""
        torch.manual_seed(SEED)
        torch.set_float32_matmul_precision("high")
        self.path = path
        self.source = source
        self.options = options
        self.device = torch.device(options.device)
        self.network = network.to(self.device)
        self.average = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizer = build_optimizer(self.network, options.learning_rate)
        self.rounding = RoundedWeights(self.network) if options.file_type == "IQ4_NL" else None
        self.generator = torch.Generator(self.device).manual_seed(SEED)
        self.progress = TrainingProgress()
        if self.device.type == "cuda":  # compiled blocks are no faster on a CPU
            dynamo.recompile_limit = max(MAX_GRAPHS, dynamo.recompile_limit)
            for block in self.network.blk:
                block.compile(dynamic=False)
        self.objective = Objective(self.network)
        num_validation = max(1, VALIDATION_TOKENS // (source.config.num_rows * source.config.num_clean))
        self.validation = validation_batches(source, self.device, num_validation)
        if options.is_causal:
            self.validation = list(map(without_canvases, self.validation))
        self.dtype = fastest_dtype(network.config, self.device)
        self.facts: dict[str, Tensor] = {}
        """Further values of each checkpoint, by their keys."""
        self.recent: list[dict[str, Tensor]] = []
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

    def resume(self) -> None:
        """Continue from the checkpoint. A file with other content than tensors, numbers and texts is refused."""
        saved = torch.load(self.path, map_location="cpu", weights_only=True)
        self.network.load_state_dict(saved["network"])
        self.average.load_state_dict(saved["average"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.progress = TrainingProgress(**saved["progress"])
        self.generator.set_state(saved["noise"])

    def save(self) -> None:
        """Write all that `resume` needs, in 8 bytes a weight."""
        content = {
            "network": _halved(self.network.state_dict()),
            "average": _halved(self.average.state_dict()),
            "optimizer": _halved(self.optimizer.state_dict()),
            "progress": asdict(self.progress),
            "noise": self.generator.get_state(),
            **self.facts,
        }
        with replacement(self.path) as new:
            torch.save(content, new)

    def run(
        self,
        show: Show,
        *,
        minutes: float | None = None,
        on_save: Callable[[], None] = lambda: None,
    ) -> TrainingProgress:
        """Train until the planned time, for `minutes` or the options' steps, or until SIGTERM.

        `on_save` is called after each checkpoint, before the validation: if the time is up, only losses are missing.
        """
        options = self.options
        progress = self.progress
        planned = options.minutes * 60
        before = progress.seconds
        started = time.monotonic()
        until = min(planned, before + minutes * 60) if minutes else planned
        last_step = None if options.max_steps is None else progress.step + options.max_steps
        next_save = before + options.checkpoint_minutes * 60
        reported = started
        num_processes = GPU_LOADERS if self.device.type == "cuda" else 0
        with closing(self.source.training_batches(SEED * 1000 + progress.step, num_processes)) as batches:
            for batch in batches:
                progress.seconds = before + time.monotonic() - started
                if progress.seconds >= until or progress.step == last_step or self.is_stopped:
                    break
                if progress.seconds >= next_save:
                    self._checkpoint(show, on_save)
                    next_save = before + time.monotonic() - started + options.checkpoint_minutes * 60
                rate = learning_rate(options.learning_rate, progress.step, progress.seconds / planned)
                tensors = to_tensors(batch, self.device)
                has_canvases = not options.is_causal and progress.step % 2 == 0
                self.step(tensors if has_canvases else without_canvases(tensors), rate)
                progress.step += 1
                progress.tokens += batch.tokens.size
                if progress.step % REPORT_STEPS == 0:
                    now = time.monotonic()
                    self._report(show, now - reported, batch.tokens.size, rate)
                    reported = now
        self._checkpoint(show, on_save)
        return progress

    def _checkpoint(self, show: Show, on_save: Callable[[], None]) -> None:
        self.save()
        on_save()
        if not self.is_stopped:
            self._validate(show)

    def step(self, batch: dict[str, Tensor], rate: float) -> None:
        """One update of the weights and their average."""
        with self.rounding.step() if self.rounding else nullcontext():
            with self._autocast():
                losses = self.objective.losses(batch, self.generator)
            losses.total().backward()
        weights = list(self.network.parameters())
        torch.nn.utils.clip_grad_norm_(weights, MAX_GRADIENT)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        # the average follows faster at the beginning
        decay = min(EMA_DECAY, (1 + self.progress.step) / (10 + self.progress.step))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.parameters()), weights, 1 - decay)
        self.recent.append(losses.by_target())

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not torch.float32)

    def _report(self, show: Show, seconds: float, num_tokens: int, rate: float) -> None:
        losses = mean_losses(self.recent)
        speed = round(len(self.recent) * num_tokens / seconds)
        self.recent.clear()
        left = round(self.options.minutes * 60 - self.progress.seconds)
        progress = {"step": self.progress.step, "tokens": self.progress.tokens, "tokens_per_second": speed}
        show({**progress, **losses, "rate": round(rate, 6), "seconds_left": left})

    @torch.no_grad()
    def _validate(self, show: Show) -> None:
        """Losses of the averaged weights, as a file has them."""
        progress = self.progress
        weights, averages = list(self.network.parameters()), list(self.average.parameters())
        saved = [weight.detach().clone() for weight in weights]
        torch._foreach_copy_(weights, averages)  # one set of compiled graphs serves both
        if self.rounding:
            round_matrices(self.network)
        with self._autocast():
            losses = validate(self.objective, self.validation)
        torch._foreach_copy_(weights, saved)
        show({"step": progress.step, "tokens": progress.tokens, "seconds": round(progress.seconds), **losses})


def fastest_dtype(config: NetworkConfig, device: torch.device) -> torch.dtype:
    """The type of the matrix products: on a CPU the faster one of bfloat16 and float32, by a measurement."""
    if device.type != "cpu":
        return torch.bfloat16

    def seconds(dtype: torch.dtype) -> float:
        states = torch.zeros(512, config.width, dtype=dtype)
        weight = torch.zeros(config.hidden, config.width, dtype=dtype)
        return min(repeat(lambda: nn.functional.linear(states, weight), number=1, repeat=8))

    return min((torch.bfloat16, torch.float32), key=seconds)


def _halved(state: Any) -> Any:
    """The tensors of a state in bfloat16: a checkpoint of 8 bytes a weight instead of 16."""
    if isinstance(state, dict):
        return {key: _halved(value) for key, value in state.items()}
    return state.bfloat16() if isinstance(state, Tensor) and state.ndim and state.is_floating_point() else state
