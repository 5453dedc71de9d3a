"""Time of the parts of a denoising step, and the gain by the cached prompt.

    python -m dg_benchmarks.step_parts [--model MODEL] [--threads N] [--rounds 15]

Prints one JSON object. `parts` are mean milliseconds per step in real fills. `cache_gains` are median milliseconds of a
step by canvas length: `cached` with the prompt in the KV cache, and `recomputed` by llama.cpp's own diffusion graph,
which has no KV cache, with random weights of the same size. They need the package gguf (the extra `dev`), and are empty
for a model with self-conditioning.
"""

import argparse
import dataclasses
import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import attrs
import numpy as np

from dg_lsp.backends.llamacpp.denoiser import ContextDenoiser
from dg_lsp.backends.llamacpp.device_reduction import GraphReduction
from dg_lsp.backends.llamacpp.diffusiongemma import SelfConditionedDenoiser
from dg_lsp.backends.llamacpp.masked import ExactDenoiser
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.bench.steps import medians, nothing, random_prompt, sample_requests
from dg_lsp.canvas.fim import open_canvas
from dg_lsp.canvas.spec import Checkpoint, ModelSpec
from dg_lsp.cli.loading import configure, load_model, open_denoiser
from dg_lsp.cli.options import overrides
from dg_lsp.diffusion import samplers
from dg_lsp.diffusion.denoiser import Denoiser
from dg_lsp.engine.engine import Engine, LocalEngine
from dg_lsp.engine.request import FillRequest
from dg_lsp.settings import ModelSettings

if TYPE_CHECKING:
    from dg_lsp.backends.transformers.denoiser import TransformersDenoiser

NUM_PROMPT_TOKENS = 512
Functions = Sequence[tuple[object, str]]
"""Owners (modules or objects) and the names of their functions."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures a model and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="name or path; default: the model of the settings")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(arguments)
    settings = configure(overrides(model=options.model, threads=options.threads, gpu_layers=None))
    model = load_model(settings)
    denoiser = open_denoiser(model)
    spec, gains = denoiser.spec, dict[int, dict[str, float]]()
    engine = LocalEngine(denoiser, denoiser.tokenizer, settings.completion)
    try:
        parts = measure_parts(engine, denoiser, sample_requests(), functions_of(denoiser))
    finally:
        engine.close()
    # the random model has an ordinary shape, unlike Gemma 4
    if not isinstance(model.weights, Checkpoint) and spec.self_conditioning is None:
        spec = dataclasses.replace(spec, max_prompt_tokens=NUM_PROMPT_TOKENS)
        cached = open_denoiser(dataclasses.replace(load_model(settings), spec=spec))
        try:
            with random_model(model.weights.metadata, spec, settings.model, cached.threads) as recomputing:
                gains = measure_cache_gain(
                    cached, recomputing, NUM_PROMPT_TOKENS, spec.canvas_lengths, rounds=options.rounds
                )
        finally:
            cached.close()
    print(json.dumps({"model": spec.name, "threads": denoiser.threads, "parts": parts, "cache_gains": gains}))


def measure_cache_gain(
    cached: Denoiser, recomputing: Denoiser, num_prompt_tokens: int, canvas_lengths: Sequence[int], *, rounds: int
) -> dict[int, dict[str, float]]:
    """Milliseconds per step of two denoisers by canvas length, with the same prompt and the same open canvas."""
    rng, prompt = np.random.default_rng(0), random_prompt(cached, num_prompt_tokens)
    for denoiser in (cached, recomputing):
        denoiser.prefill(0, prompt)
    found = {}
    for length in canvas_lengths:
        canvas = open_canvas(prompt, cached.spec, length, rng).canvas_ids
        jobs = [(nothing, partial(one.predict, 0, [canvas], 0.0, rng)) for one in (cached, recomputing)]
        found[length] = dict(zip(("cached", "recomputed"), medians(jobs, rounds), strict=True))
    return found


def measure_parts(
    engine: Engine, denoiser: Denoiser, requests: Sequence[FillRequest], functions: Mapping[str, Functions]
) -> dict[str, float]:
    """Mean milliseconds of the parts of a step in real fills by diffusion.

    `functions` are called by the `predict` of the denoiser, and are replaced by timed ones during the measurement.
    `python` is the time outside the functions: batches, checks, the loop, stop criteria.
    """
    timer = Timer()
    with ExitStack() as stack:
        stack.enter_context(timer.replacing(denoiser, "predict", "predict"))
        for name, listed in functions.items():
            for owner, function in listed:
                stack.enter_context(timer.replacing(owner, function, name, within="predict"))
        for function in ("unmask", "renoise"):
            stack.enter_context(timer.replacing(samplers, function, "sampling"))
        results = [engine.fill(request, deadline=math.inf) for request in requests]
    num_steps = sum(result.steps for result in results)
    names = ("decode", "self_conditioning", "reduction", "sampling")
    parts = {name: timer.ms[name] / max(1, num_steps) for name in names}
    denoise = sum(result.timings.denoise for result in results) / max(1, num_steps)
    return {**parts, "python": denoise - sum(parts.values())}


def functions_of(denoiser: "ContextDenoiser | TransformersDenoiser") -> Mapping[str, Functions]:
    """The functions behind `predict` for `measure_parts`."""
    if not isinstance(denoiser, ContextDenoiser):  # one call to the device does everything, another one waits for it
        return {"decode": ((denoiser.stepper, "run"), (denoiser, "_fetched"))}
    context, reducer = denoiser._context, denoiser._reducer
    decode = ((context, "decode"), (context, "logits"))
    if not isinstance(denoiser, SelfConditionedDenoiser):
        return {"decode": decode, "reduction": ((reducer, "reduce"),), "self_conditioning": ()}
    reduction = denoiser._reduction
    in_graph = isinstance(reduction, GraphReduction)
    return {
        "decode": decode,
        "reduction": ((reduction, "_read"),) if in_graph else ((reducer, "reduce"),),
        "self_conditioning": ((denoiser, "_input_rows"), (reduction, "record")),
    }


class Timer:
    """Milliseconds by name of functions that are replaced temporarily."""

    def __init__(self) -> None:
        self.ms: Counter[str] = Counter()
        self._running: set[str] = set()

    def replacing(self, owner: object, function: str, name: str, within: str | None = None) -> Any:
        """A context that measures calls of the function as `name`; with `within`, only calls inside that one."""
        original = getattr(owner, function)

        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            self._running.add(name)
            try:
                return original(*arguments, **options)
            finally:
                self._running.discard(name)
                if within is None or within in self._running:
                    self.ms[name] += 1e3 * (time.perf_counter() - start)  # type: ignore[assignment]

        return mock.patch.object(owner, function, timed)


@contextmanager
def random_model(
    metadata: Mapping[str, str], spec: ModelSpec, settings: ModelSettings, threads: int
) -> Iterator[ExactDenoiser]:
    """A `dream` model with random weights and the size of another model; llama.cpp runs it without a KV cache.

    A step with random weights takes as long as with trained ones.
    """
    settings = attrs.evolve(settings, threads=threads, prompt_attention="exact")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "dream.gguf")
        _write_random_model(path, metadata, spec.vocab_size)
        denoiser = ExactDenoiser(LlamaModel.load(path, settings), spec, settings)
        try:
            yield denoiser
        finally:
            denoiser.close()


def _write_random_model(path: Path, metadata: Mapping[str, str], vocab_size: int) -> None:
    """Writes a `dream` model in Q8_0 with the sizes in the metadata of another GGUF file."""
    import gguf

    source, q8_0 = metadata["general.architecture"], gguf.GGMLQuantizationType.Q8_0
    names = (
        "embedding_length",
        "attention.head_count",
        "attention.head_count_kv",
        "block_count",
        "feed_forward_length",
    )
    width, heads, kv_heads, num_layers, hidden = (int(metadata[f"{source}.{name}"]) for name in names)
    writer = gguf.GGUFWriter(path, "dream")
    for name, value in zip(names, (width, heads, kv_heads, num_layers, hidden), strict=True):
        writer.add_uint32(f"dream.{name}", value)
    writer.add_context_length(4096)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"t{i}" for i in range(vocab_size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * vocab_size)
    writer.add_token_merges(["t 0"])
    writer.add_mask_token_id(0)
    kv_width = kv_heads * (width // heads)
    layer: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("attn_q.weight", "attn_output.weight"), (width, width)),
        **dict.fromkeys(("attn_k.weight", "attn_v.weight"), (kv_width, width)),
        **dict.fromkeys(("attn_k.bias", "attn_v.bias"), (kv_width,)),
        **dict.fromkeys(("ffn_gate.weight", "ffn_up.weight"), (hidden, width)),
        **dict.fromkeys(("attn_norm.weight", "ffn_norm.weight", "attn_q.bias"), (width,)),
        "ffn_down.weight": (width, hidden),
    }
    shapes = {f"blk.{i}.{name}": shape for i in range(num_layers) for name, shape in layer.items()}
    shapes |= dict.fromkeys(("token_embd.weight", "output.weight"), (vocab_size, width))
    rng = np.random.default_rng(0)
    for name, shape in {**shapes, "output_norm.weight": (width,)}.items():
        if len(shape) == 1:  # a norm or a bias
            writer.add_tensor(name, np.full(shape, float(name.endswith("weight")), np.float32))
        else:
            matrix = rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1]))
            writer.add_tensor(name, gguf.quants.quantize(matrix, q8_0), raw_dtype=q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
