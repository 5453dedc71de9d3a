"""DiffusionGemma's encoder and decoder, computed by transformers' own modules; one denoising step, and its reduction.

Self-conditioning enters and leaves a step as an embedding of shape (T, hidden); transformers keeps logits instead.

No GPU has run this module: bfloat16, compiled steps for a GPU and CUDA graphs are tested on the CPU with replacements.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from dg_lsp.backends.transformers.cache import PrefixCache, PromptBuffers
from dg_lsp.backends.transformers.errors import is_out_of_memory, one_line

_ENCODER_CHUNK = 2048
"""Prompt tokens of one encoder pass: the attention scores of a long prompt would take gigabytes."""
_MIN_GRAPH_CAPACITY = 512
_MAX_GRAPHS = 24
"""Each graph holds the activations of one step."""
_CHECK_TOKENS = 16
"""Tokens of the prompt and of the canvas of the check at load."""
_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Largest mean difference of probabilities and of entropies in nats between an eager and a fast step, by number format;
rounding stays far below. Other formats have `_COARSE`, a guess that no GPU has tested."""
_COARSE = 0.1
_log = logging.getLogger(__name__)


class StepInputs(NamedTuple):
    """Everything that differs between two steps, on the device. T is the number of canvas tokens."""

    tokens: torch.Tensor  # shape (3, T), int64: ids, positions from the prompt's length on, and numbers of canvases
    conditioning: torch.Tensor  # shape (T, hidden): the second value of the step before; zeros before the first step
    noise: torch.Tensor
    """Shape (T + 1,): random numbers in [0, 1) that decide the samples, then the temperature, above 0."""


StepOutputs = tuple[torch.Tensor, torch.Tensor]
"""`ReducedLogits.rows`, and the conditioning of the next step, shape (T, hidden)."""


def append_canvas(prefix: StepOutputs, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Replaces the decoder's `append_to_cache`, which indexes a cache by layer and so differs between layers."""
    return torch.cat([prefix[0], keys], dim=-2), torch.cat([prefix[1], values], dim=-2)


def run_layer(layer: Any, hidden: torch.Tensor, rotary: Any, mask: torch.Tensor, prefix: StepOutputs) -> torch.Tensor:
    """One decoder layer. The same code runs all layers of a kind, so torch compiles it once for each kind."""
    output: torch.Tensor = layer(hidden, position_embeddings=rotary, attention_mask=mask, past_key_values=prefix)
    return output


_BLOCK = 128


class ReducedLogits(NamedTuple):
    """Values of T positions, on the device."""

    rows: torch.Tensor
    """Shape (5, T), float32: argmax, sampled token, confidence, entropy, the sampled token's probability. One array is
    one copy to the host; token ids are exact up to 2**24."""
    probabilities: torch.Tensor
    """Shape (T, vocabulary): the tempered distribution in the number format of the embedding."""


def soft_cap(raw: torch.Tensor, cap: float) -> torch.Tensor:
    """Logits in (-cap, cap), float32."""
    return torch.tanh(raw.to(torch.float32) / cap) * cap


def reduce_logits(
    raw: torch.Tensor, cap: float, banned_ids: torch.Tensor, temperature: torch.Tensor, uniforms: torch.Tensor
) -> ReducedLogits:
    """Caps, bans and tempers logits of shape (T, vocabulary) in the order of transformers, and samples from the result.

    `banned_ids`, shape (B,), are never predicted; `temperature`, shape (), is above 0; `uniforms`, shape (T,), are
    random numbers in [0, 1) that decide the samples.
    """
    logits = soft_cap(raw, cap).index_fill_(1, banned_ids, float("-inf")) / temperature
    exact = torch.softmax(logits, dim=-1)
    confidence, argmax = exact.max(dim=-1)
    entropy = torch.special.entr(exact).sum(dim=-1)
    sampled = draw(exact, uniforms)
    sampled_confidence = exact.gather(1, sampled[:, None])[:, 0]
    rows = torch.stack([argmax.float(), sampled.float(), confidence, entropy, sampled_confidence])
    # transformers rounds the logits before the softmax
    probabilities = torch.softmax(logits.to(raw.dtype), dim=-1, dtype=torch.float32).to(raw.dtype)
    return ReducedLogits(rows, probabilities)


def draw(probabilities: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """One token for each row of (T, vocabulary): inverts the cumulative sum over blocks, then inside one block."""
    length, vocab_size = probabilities.shape
    blocks = torch.nn.functional.pad(probabilities, (0, -vocab_size % _BLOCK)).view(length, -1, _BLOCK)
    sums = blocks.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    targets = uniforms.to(torch.float64)[:, None] * sums[:, -1:]
    block = torch.searchsorted(sums, targets, right=True).clamp_(max=sums.shape[1] - 1)
    before = torch.where(block > 0, sums.gather(1, (block - 1).clamp_(min=0)), 0.0)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK))[:, 0].to(torch.float64)
    offset = torch.searchsorted(inside.cumsum(dim=-1), targets - before, right=True).clamp_(max=_BLOCK - 1)
    tokens = (block * _BLOCK + offset).clamp_(max=vocab_size - 1)
    # rounding can select a token of probability 0; the argmax replaces it
    return torch.where(probabilities.gather(1, tokens) > 0, tokens, probabilities.argmax(dim=-1, keepdim=True))[:, 0]


class DiffusionGemmaNetwork:
    """Owns a loaded `DiffusionGemmaForBlockDiffusion`, and replaces the way its decoder reads the cache."""

    def __init__(self, model: Any) -> None:
        self._model = model.eval()
        self.config = model.config.get_text_config()
        decoder = model.model.decoder
        self._encoder, self._decoder, self._head = model.model.encoder.language_model, decoder, model.lm_head
        for layer in decoder.layers:
            layer.self_attn.append_to_cache = append_canvas
        self.embedding: torch.Tensor = decoder.embed_tokens.weight
        """Shape (vocabulary, hidden); also the output head. Gives number format and device of the network."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all weights; shared ones count once."""
        parts = (*self._model.parameters(), *self._model.buffers())
        return sum({part.data_ptr(): part.nbytes for part in parts}.values())

    def encode(self, prefix: PrefixCache, ids: torch.Tensor) -> None:
        """Appends prompt tokens of shape (N,) to a prefix, causally."""
        for chunk in ids.split(_ENCODER_CHUNK):
            self._encoder(input_ids=chunk[None], past_key_values=prefix.layers)

    def raw_logits(
        self, inputs: StepInputs, buffers: PromptBuffers, capacity: int, run: Callable[..., torch.Tensor] = run_layer
    ) -> torch.Tensor:
        """Logits of shape (T, vocabulary) before the soft cap; `capacity` is at least the prompt's length."""
        decoder = self._decoder
        ids, positions, canvas_numbers = inputs.tokens
        hidden = decoder.self_conditioning(decoder.embed_tokens(ids[None]), inputs.conditioning[None])
        masks = buffers.masks(canvas_numbers, positions[0], capacity)
        rotary = {kind: decoder.rotary_emb(hidden, positions[None], kind) for kind in masks}
        for number, (kind, layer) in enumerate(zip(self.config.layer_types, decoder.layers, strict=True)):
            hidden = run(layer, hidden, rotary[kind], masks[kind], buffers.layer(number, capacity))
        raw: torch.Tensor = self._head(decoder.norm(hidden))[0]
        return raw

    def soft_embedding(self, probabilities: torch.Tensor) -> torch.Tensor:
        """The mean embedding under probabilities of shape (T, vocabulary): the next step's conditioning."""
        scale = self._decoder.embed_tokens.embed_scale.to(self.embedding.dtype)
        return torch.matmul(probabilities, self.embedding) * scale


@dataclass(frozen=True, slots=True)
class StepOptions:
    """How steps run; None means what the device supports."""

    reduce: Callable[..., ReducedLogits] = reduce_logits
    captures: bool | None = None  # whether steps become CUDA graphs
    compiles: bool | None = None  # whether torch compiles them, which needs Triton on a GPU


DEFAULT_OPTIONS = StepOptions()


class Stepper:
    """Runs denoising steps: compiled and captured as CUDA graphs on a GPU, eagerly elsewhere or where that fails.

    No GPU has run the fast steps; `check` compares them with an eager one at load.
    """

    def __init__(
        self, network: DiffusionGemmaNetwork, prompt_limit: int, banned_ids: torch.Tensor, options: StepOptions
    ) -> None:
        """`banned_ids`, shape (B,), are never predicted; a prompt has at most `prompt_limit` tokens."""
        on_gpu = network.embedding.is_cuda
        self._network, self._prompt_limit, self._banned_ids = network, prompt_limit, banned_ids
        self.buffers = PromptBuffers(network.config, prompt_limit, like=network.embedding)
        """The prompt of the following steps."""
        self._parts = (run_layer, options.reduce)
        self._captures = on_gpu if options.captures is None else options.captures
        compiles = on_gpu and find_spec("triton") is not None if options.compiles is None else options.compiles
        self._compiled = [torch.compile(part, dynamic=True) for part in self._parts] if compiles else []
        self._uses: Counter[tuple[int, int]] = Counter()
        self._graphs: dict[tuple[int, int], _Graph] = {}

    def capacity(self, prompt_length: int) -> int:
        """Prompt tokens that a step has room for; few different numbers where each shape costs a graph."""
        if not self._captures:
            return prompt_length
        return min(max(_MIN_GRAPH_CAPACITY, 1 << max(0, prompt_length - 1).bit_length()), self._prompt_limit)

    def run(self, inputs: StepInputs, prompt_length: int) -> StepOutputs:
        """One step over a prompt; the next step of the same shape overwrites the outputs."""
        try:
            return self._run(inputs, self.capacity(prompt_length))
        except RuntimeError as error:
            if is_out_of_memory(error) or not self.is_fast:
                raise
            self._slow_down(f"failed ({one_line(error)})")
        return self.run(inputs, prompt_length)

    @property
    def is_fast(self) -> bool:
        """Steps are compiled or captured, as far as nothing has failed."""
        return bool(self._compiled) or self._captures

    @torch.inference_mode()
    def check(self) -> None:
        """Compares fast steps with an eager one over a short prompt, and gives up those that differ.

        It also compiles and captures the first shape. Called before any prompt is loaded. Raises as a step does.
        """
        if not self.is_fast:
            return
        embedding, count = self._network.embedding, min(_CHECK_TOKENS, self._prompt_limit)
        ids = torch.arange(2 * count, device=embedding.device) % len(embedding)
        prefix = PrefixCache(self._network.config, self._prompt_limit)
        self._network.encode(prefix, ids[:count])
        self.buffers.load(prefix)
        positions = torch.arange(count, 2 * count, device=embedding.device)
        noise = torch.full((count + 1,), 0.5, device=embedding.device)
        tokens = torch.stack([ids[count:], positions, torch.zeros_like(positions)])
        inputs = StepInputs(tokens, embedding.new_zeros((count, embedding.shape[1])), noise)
        expected = self._step(count, inputs, self._parts)[0].clone()
        limit = _TOLERANCES.get(embedding.dtype, _COARSE)
        while self.is_fast:
            for _ in range(2):  # the second one is captured
                rows = self.run(inputs, count)[0]
            difference = float((rows - expected)[2:4].abs().mean(dim=1).max())
            if difference <= limit:  # False for NaN
                return
            self._slow_down(f"computes other numbers (by {difference:.2g} in the mean, at most {limit:g})")

    def _slow_down(self, reason: str) -> None:
        """Goes on without the compiler, then without graphs."""
        what = "torch.compile" if self._compiled else "the capture of a CUDA graph"
        _log.warning("%s %s; steps run without it and are slower", what, reason)
        self._captures, self._compiled = self._captures and bool(self._compiled), []
        self._graphs.clear()

    def _run(self, inputs: StepInputs, capacity: int) -> StepOutputs:
        shape = (len(inputs.conditioning), capacity)
        self._uses[shape] += 1
        if not self._captures or self._uses[shape] < 2:  # a capture takes longer than several steps
            return self._step(capacity, inputs)
        graph = self._graphs.pop(shape, None)
        if graph is None:
            if len(self._graphs) >= _MAX_GRAPHS:
                self._graphs.pop(next(iter(self._graphs)))  # the least recently used one
            # all graphs share memory: the caller copies the outputs before the next step
            other = next(iter(self._graphs.values()), None)
            graph = _Graph(lambda captured: self._step(capacity, captured), inputs, other)
        self._graphs[shape] = graph
        return graph.replay(inputs)

    def _step(
        self, capacity: int, inputs: StepInputs, parts: Sequence[Callable[..., Any]] | None = None
    ) -> StepOutputs:
        run, reduce = parts or self._compiled or self._parts
        raw = self._network.raw_logits(inputs, self.buffers, capacity, run)
        cap = float(self._network.config.final_logit_softcapping)
        rows, probabilities = reduce(raw, cap, self._banned_ids, inputs.noise[-1], inputs.noise[:-1])
        return rows, self._network.soft_embedding(probabilities)


class _Graph:
    """The recorded kernels of a step of one shape: about 3,500 launches at 30 layers become one. Not run on a GPU."""

    def __init__(self, run: Callable[[StepInputs], StepOutputs], example: StepInputs, other: "_Graph | None") -> None:
        self._inputs = StepInputs(*(tensor.clone() for tensor in example))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # libraries set up their workspaces, which must happen outside of the capture
                run(self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=other._graph.pool() if other else None):  # noqa: SLF001
            self._outputs = run(self._inputs)

    def replay(self, inputs: StepInputs) -> StepOutputs:
        """Runs the step on other inputs of the same shape."""
        for captured, new in zip(self._inputs, inputs, strict=True):
            captured.copy_(new)
        self._graph.replay()
        return self._outputs
