"""One denoising step as one function of tensors: eager, compiled, or captured as a CUDA graph."""

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dg_lsp.backends.hf.network import CanvasTokens, Network
from dg_lsp.backends.hf.stage import Stage

_CAPTURED_FROM = 2
"""A shape asked for so often is worth a graph: capturing takes longer than several steps."""
_MAX_GRAPHS = 24
"""Least recently used ones go; each holds a step's activations."""
_EAGER_BLOCK = 64
_SMALLEST_GRAPH = 512


@dataclass(frozen=True, slots=True, eq=False)
class StepInput:
    """Everything that differs from step to step, on the device; T canvas tokens."""

    tokens: CanvasTokens
    temperature: torch.Tensor
    """Above 0, a number."""
    chances: torch.Tensor
    """Shape (T,), uniform in [0, 1): what is sampled."""

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """In a fixed order."""
        tokens = self.tokens
        return (
            tokens.ids, tokens.positions, tokens.canvas_numbers, tokens.length, tokens.conditioning,
            self.temperature, self.chances,
        )  # fmt: skip

    @classmethod
    def of(cls, tensors: tuple[torch.Tensor, ...]) -> "StepInput":
        """From `tensors()`."""
        return cls(CanvasTokens(*tensors[:5]), *tensors[5:])


@dataclass(frozen=True, slots=True, eq=False)
class StepOutput:
    """What a step says, on the device."""

    rows: torch.Tensor
    """Shape (4, T), see `Sampled`."""
    conditioning: torch.Tensor
    """Shape (T, hidden): for the next step."""


Reduce = Callable[..., Any]
"""`reduce.reduce` or one that answers the same."""


class Stepper:
    """Runs steps of one network over one stage."""

    def __init__(
        self,
        network: Network,
        stage: Stage,
        reduce: Reduce,
        banned_ids: torch.Tensor,
        *,
        prompt_limit: int,
        captures: bool = False,
        compiles: bool = False,
    ) -> None:
        """`captures` makes CUDA graphs; `compiles` lets torch fuse kernels, which takes minutes at first."""
        self._network, self._stage, self._reduce = network, stage, reduce
        self._banned_ids = banned_ids
        self._prompt_limit = prompt_limit
        self._captures = captures
        self._run: Callable[..., tuple[torch.Tensor, torch.Tensor]] = self._step
        if compiles:
            self._run = torch.compile(self._step, fullgraph=True, dynamic=False)
        self._has_fixed_shapes = captures or compiles
        self._asked: Counter[tuple[int, int]] = Counter()
        self._graphs: OrderedDict[tuple[int, int], _Graph] = OrderedDict()

    @property
    def num_graphs(self) -> int:
        """Shapes captured so far."""
        return len(self._graphs)

    def capacity(self, length: int) -> int:
        """Prompt tokens that a step makes room for: a power of two where shapes must be few."""
        if not self._has_fixed_shapes:
            return min(-(-length // _EAGER_BLOCK) * _EAGER_BLOCK, self._prompt_limit)
        return min(max(_SMALLEST_GRAPH, 1 << max(0, length - 1).bit_length()), self._prompt_limit)

    def run(self, given: StepInput, length: int) -> StepOutput:
        """One step over a prompt of `length` tokens. What it says is overwritten by the next step of the same shape."""
        key = (len(given.tokens.ids), self.capacity(length))
        if not self._captures:
            return StepOutput(*self._run(key[1], *given.tensors()))
        if key in self._graphs:
            self._graphs.move_to_end(key)
            return self._graphs[key].replay(given)
        self._asked[key] += 1
        if self._asked[key] < _CAPTURED_FROM:
            return StepOutput(*self._run(key[1], *given.tensors()))
        if len(self._graphs) >= _MAX_GRAPHS:
            self._graphs.popitem(last=False)
        # one pool of memory for all: what a step says is copied before the next one runs
        other = next(iter(self._graphs.values()), None)
        self._graphs[key] = _Graph(lambda *tensors: self._run(key[1], *tensors), given, other)
        return self._graphs[key].replay(given)

    def close(self) -> None:
        """Gives the graphs back."""
        self._graphs.clear()

    def _step(self, capacity: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        given = StepInput.of(tensors)
        raw = self._network.head(given.tokens, self._stage, capacity)
        sampled = self._reduce(raw, self._network.cap, self._banned_ids, given.temperature, given.chances)
        return sampled.rows, self._network.soft_embedding(sampled.weights)


class _Graph:
    """A step's kernels with their launches recorded: 3,500 of them at 30 layers, else issued one by one."""

    def __init__(
        self, run: Callable[..., tuple[torch.Tensor, torch.Tensor]], example: StepInput, other: "_Graph | None"
    ) -> None:
        self._inputs = tuple(tensor.clone() for tensor in example.tensors())
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # libraries set their workspaces up, which must not be captured
                run(*self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=other._graph.pool() if other else None):  # noqa: SLF001
            self._output = StepOutput(*run(*self._inputs))

    def replay(self, given: StepInput) -> StepOutput:
        for held, new in zip(self._inputs, given.tensors(), strict=True):
            held.copy_(new)
        self._graph.replay()
        return self._output
