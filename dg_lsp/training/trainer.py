"""The training loop: batches in, checkpoints and a log out.

Stops at a planned time and resumes without warming up again: optimizers, data and noise go on where they were.
"""

import copy
import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.config as dynamo
from torch import Tensor

from dg_lsp.training import checkpoint
from dg_lsp.training.checkpoint import Progress
from dg_lsp.training.config import TrainConfig
from dg_lsp.training.feed import Feed
from dg_lsp.training.gguf_file import read_gguf
from dg_lsp.training.network import Network
from dg_lsp.training.objective import Objective, held_out_batches, tensors, validate, without_canvases
from dg_lsp.training.optimizers import build_optimizers, rate_scale, set_rate
from dg_lsp.training.replicas import Replicas

NUM_VALIDATION = 10  # batches
REPORT_STEPS = 20
MAX_GRAPHS = 64  # blocks are compiled for every canvas length, with and without gradients


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """The last steps in numbers; losses in nats."""

    step: int
    tokens: int
    tokens_per_second: float
    following: float
    content: float
    fill: float
    rate: float
    seconds: float
    seconds_left: float


Show = Callable[[Report | dict[str, Any]], None]


class Trainer:
    """Owns a network and everything that changes while it learns."""

    def __init__(
        self,
        root: Path,
        config: TrainConfig,
        *,
        device: str = "cpu",
        compiled: bool = True,
        replicas: Replicas = Replicas(),  # noqa: B008 - frozen
    ) -> None:
        torch.manual_seed(config.seed)
        self.replicas = replicas
        torch.set_float32_matmul_precision("high")
        self.root, self.config, self.device = root, config, torch.device(device)
        self.network = Network(config.network).to(self.device)
        self.average = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizers = build_optimizers(self.network, config.optimizer)
        self.generator = torch.Generator(self.device).manual_seed(config.seed + replicas.rank)
        self.progress = Progress()
        self.feed_state: Any = None
        if compiled:
            dynamo.recompile_limit = max(MAX_GRAPHS, dynamo.recompile_limit)
            for block in self.network.blocks:
                block.compile(dynamic=False)
        self.objective = Objective(self.network, config, compiled=compiled)
        self.held_out = held_out_batches(root, config, self.device, NUM_VALIDATION)
        self.recent: list[Tensor] = []

    @property
    def path(self) -> Path:
        """The checkpoint of this configuration."""
        return self.root / "runs" / f"{self.config.name}.pt"

    def resume(self) -> None:
        """Continues from the checkpoint."""
        saved = checkpoint.load(self.path)
        self.network.load_state_dict(saved["network"])
        self.average.load_state_dict(saved["average"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.progress = Progress(**saved["progress"])
        streams = saved["streams"]
        if self.replicas.rank < len(streams):
            generator, self.feed_state = streams[self.replicas.rank]
            self.generator.set_state(generator)

    def start_from(self, path: Path) -> None:
        """Takes the weights of a GGUF of this configuration; everything else begins anew."""
        weights, tokens = read_gguf(path, self.config.network)
        self.network.load_state_dict(weights)
        self.average.load_state_dict(weights)
        self.progress.tokens = tokens

    def save(self) -> None:
        """Writes everything `resume` needs; every replica must call it."""
        streams = self.replicas.gathered((self.generator.get_state(), self.feed_state))
        if not self.replicas.is_first:
            return
        content = {
            "config": dataclasses.asdict(self.config),
            "network": self.network.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "progress": dataclasses.asdict(self.progress),
            "streams": streams,
        }
        checkpoint.save(self.path, content)

    def run(self, show: Show, *, minutes: float | None = None, max_steps: int | None = None) -> Progress:
        """Trains until the planned time, `minutes` of this part, or `max_steps` of it are over."""
        progress, planned = self.progress, self.config.minutes * 60
        before, started = progress.seconds, time.monotonic()
        until = min(planned, before + minutes * 60) if minutes else planned
        last_step = progress.step + max_steps if max_steps else None
        next_save = before + self.config.checkpoint_minutes * 60
        reported = before
        with closing(Feed(self.root, self.config, self.feed_state, self.replicas.rank)) as feed:
            for batch in feed:
                progress.seconds = self.replicas.agreed(before + time.monotonic() - started)
                if progress.seconds >= until or progress.step == last_step:
                    break
                scale = rate_scale(self.config.optimizer, progress.step, progress.seconds / planned)
                arrays = tensors(batch, self.device)
                if self.is_causal(progress.seconds / planned):
                    arrays = without_canvases(arrays)
                self.step(arrays, self.config.optimizer.learning_rate * scale)
                self.feed_state = feed.state
                progress.step += 1
                progress.tokens += batch.tokens.size * self.replicas.num
                if progress.step % REPORT_STEPS == 0:
                    speed = REPORT_STEPS * batch.tokens.size * self.replicas.num / (progress.seconds - reported)
                    reported = progress.seconds
                    self._tell(show, self._report(speed, scale))
                if progress.seconds >= next_save:
                    self._keep(show)
                    next_save = progress.seconds + self.config.checkpoint_minutes * 60
        self._keep(show)
        return progress

    def is_causal(self, share: float) -> bool:
        """Whether this step leaves the canvases out; spread evenly, the same in every replica."""
        before, after = (int(step * self.config.causal_share) for step in (self.progress.step, self.progress.step + 1))
        return share < self.config.causal_until and after > before

    def _tell(self, show: Show, news: Report | dict[str, Any]) -> None:
        if self.replicas.is_first:
            show(news)

    def _keep(self, show: Show) -> None:
        """Validates and saves; the other replicas wait at their next step."""
        if self.replicas.is_first:
            show(self.validate())
        self.save()

    def step(self, batch: dict[str, Tensor], rate: float) -> None:
        """One update; keeps the next-token, content and fill losses for the next report."""
        with torch.autocast(self.device.type, torch.bfloat16):
            losses = self.objective.losses(batch, self.generator)
        losses.total(self.config).backward()
        self.replicas.average_gradients(list(self.network.parameters()))
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.optimizer.clip)
        set_rate(self.optimizers, rate)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        # a young average follows faster
        decay = min(self.config.optimizer.ema_decay, (1 + self.progress.step) / (10 + self.progress.step))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.parameters()), list(self.network.parameters()), 1 - decay)
        self.recent.append(losses.summary())

    def _report(self, speed: float, scale: float) -> Report:
        following, content, fill = torch.stack(self.recent).nanmean(0).tolist()
        self.recent.clear()
        p, rate = self.progress, self.config.optimizer.learning_rate * scale
        left = self.config.minutes * 60 - p.seconds
        return Report(p.step, p.tokens, speed, following, content, fill, rate, p.seconds, left)

    def validate(self) -> dict[str, Any]:
        """Held-out losses of the weights and of their average, added to the log."""
        found: dict[str, Any] = dict(validate(self.objective, self.held_out))
        with self._averaged():
            found["average"] = validate(self.objective, self.held_out)
        p = self.progress
        entry = {"step": p.step, "tokens": p.tokens, "seconds": round(p.seconds), **found}
        p.log.append(entry)
        return entry

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """The network with the average's values: one set of compiled graphs serves both."""
        weights, averages = list(self.network.parameters()), list(self.average.parameters())
        kept = [weight.detach().clone() for weight in weights]
        with torch.no_grad():
            torch._foreach_copy_(weights, averages)
            yield
            torch._foreach_copy_(weights, kept)
