"""Where a step's time goes: its parts, all layers of each, run alone; on a GPU captured, so that no launch counts."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from dg_lsp.backends.hf.denoiser import HfDenoiser
from dg_lsp.backends.hf.network import Network

_REPEATS = 10


@dataclass(frozen=True)
class PartTimes:
    """Milliseconds of one step over one canvas."""

    dtype: str
    prompt: int
    canvas: int
    parts: dict[str, float]
    whole: float
    """The step in one piece, on the device alone."""

    def lines(self) -> Iterator[str]:
        """As Markdown; what no part accounts for are norms, residuals, rotations and masks."""
        yield f"{self.dtype}, prompt {self.prompt}, canvas {self.canvas}: where a step's time goes"
        yield from ("", "| part | ms | share |", "|---|--:|--:|")
        rest = self.whole - sum(self.parts.values())
        for name, ms in (*self.parts.items(), ("norms and all else", rest), ("a whole step", self.whole)):
            yield f"| {name} | {ms:.3f} | {ms / self.whole:.0%} |"


@torch.inference_mode()
def measure_parts(denoiser: HfDenoiser, network: Network, dtype: str, canvas: int, rounds: int) -> PartTimes:
    """Over the prompt that slot 0 holds."""
    decoder, config, like = network._decoder, network.config, network.embedding
    length = len(denoiser._held[0])
    capacity = denoiser.stepper.capacity(length)
    denoiser._show(0)
    stage, layers = denoiser._stage, list(zip(config.layer_types, decoder.layers, strict=True))
    hidden = torch.randn((1, canvas, network.embedding_length), device=like.device).to(like.dtype)
    rows = hidden[0]
    ids = torch.arange(canvas, device=like.device)
    positions = (ids + length)[None]
    one = torch.zeros((), device=like.device)
    rotary = {kind: decoder.rotary_emb(hidden, positions, kind) for kind in set(config.layer_types)}
    masks = stage.masks(torch.zeros_like(ids), one.long() + length, capacity)
    raw = network._head(hidden)[0]
    reduce, banned = denoiser.stepper._reduce, denoiser.stepper._banned_ids
    given = (network.cap, banned, one + 0.6, one.expand(canvas) + 0.5)
    weights = reduce(raw, *given).weights

    def attention() -> None:
        for kind, layer in layers:
            seen = (stage, capacity)
            layer.self_attn(hidden, position_embeddings=rotary[kind], attention_mask=masks[kind], past_key_values=seen)

    def experts() -> None:
        for _, layer in layers:
            _, shares, chosen = layer.router(rows)
            layer.experts(rows, chosen, shares)

    step = denoiser._input(0, [ids.cpu().numpy()], [(0, 0)], 0.6, _Draws())
    found = {
        "attention": attention,
        "shared MLP": lambda: [layer.mlp(hidden) for _, layer in layers],
        "experts and routers": experts,
        "head": lambda: network._head(hidden),
        "reduction and sampling": lambda: reduce(raw, *given),
        "self-conditioning": lambda: decoder.self_conditioning(hidden, network.soft_embedding(weights)[None]),
    }
    parts = {name: _timed(run, like.device, rounds) for name, run in found.items()}
    whole = _timed(lambda: denoiser.stepper._step(capacity, *step.tensors()), like.device, rounds)
    return PartTimes(dtype, length, canvas, parts, whole)


class _Draws:
    """Chances for a step whose samples nobody looks at."""

    def random(self, count: int) -> object:
        return torch.full((count,), 0.5).numpy()


def _timed(run: Callable[[], object], device: torch.device, rounds: int) -> float:
    if device.type != "cuda":
        times = []
        for _ in range(rounds + 1):
            start = time.perf_counter()
            run()
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times[1:])
    return _captured(run, device, rounds)


def _captured(run: Callable[[], object], device: torch.device, rounds: int) -> float:
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(rounds):
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        for _ in range(_REPEATS):
            graph.replay()
        after.record()
        torch.cuda.synchronize(device)
        times.append(before.elapsed_time(after) / _REPEATS)
    return statistics.median(times)
