"""Models with blocks in a causal or block-causal context, against the sampling code of their authors over numpy.

That is `block_diffusion_generate` (SDAR, Stable-DiffCoder), `batch_sample` (Fast-dLLM v2) and `linear_spec_generate`
(Nemotron-Labs-Diffusion).
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import tiny_masked
from margins import predict
from tiny_masked import MASK, softmax

from dg_lsp.canvas.layout import Layout, token_ids
from dg_lsp.engine.decode_task import DecodeTask, EngineModel
from dg_lsp.engine.decoder_selection import possible_decoders
from dg_lsp.engine.decoders.autoregressive import AutoregressiveDecoder, SpeculativeDecoder
from dg_lsp.engine.decoders.base import Limits, RequestCosts, StopCriteria
from dg_lsp.engine.decoders.diffusion import DiffusionDecoder
from dg_lsp.engine.engine import drain

pytestmark = pytest.mark.usefixtures("full_precision")
EXACT = 1e-4
NUM_TOKENS = 24


@dataclass(frozen=True)
class Case:
    architecture: str
    name: str
    block_length: int
    threshold: float  # of the test: random weights are rarely as sure as the family's threshold


CASES = (
    Case("llama", "Stable DiffCoder 8B", 4, 0.5),
    Case("qwen3", "SDAR 1.7B Chat", 4, 0.3),
    Case("qwen3", "SDAR 8B Chat b32", 32, 0.5),
    Case("qwen2", "Fast dLLM v2 7B", 32, 0.5),
)
MIXTURE = Case("qwen3moe", "SDAR 30B A3B Chat b16", 16, 0.85)
DRAFTER = Case("mistral3", "Nemotron Labs Diffusion 3B", 0, 0.9)


@pytest.fixture
def open_case(tmp_path, open_masked):
    def make(case):
        tiny = tiny_masked.make(case.architecture, kv_heads=2, seed=3, experts=8)
        if not tiny.has_head_norms:  # softer attention, which amplifies the processors' rounding less
            for layer in range(tiny.layers):
                tiny.tensors[f"blk.{layer}.attn_q.weight"] *= 0.5
        path = tiny_masked.write(tmp_path / "tiny.gguf", tiny, name=case.name)
        return tiny, open_masked(path)

    return make


def best(tiny, denoiser, ids, rows, **attention):
    """Best tokens and their probabilities at some rows of the logits."""
    logits = tiny_masked.logits(tiny, ids, **attention)[rows]
    logits[:, list(denoiser.spec.banned_ids)] = -np.inf
    return logits.argmax(axis=1), softmax(logits).max(axis=1)


def authors_fill(tiny, denoiser, prompt, threshold):
    """The authors' sampler at temperature 0: the confident masks of a block, one at least, are replaced in each step.

    Fast-dLLM fills windows of 8 tokens in order, and its logits at a position predict the next one.
    """
    length, x = denoiser.spec.block_length, list(prompt)
    window = 8 if tiny.is_shifted else length
    while len(x) < len(prompt) + NUM_TOKENS:
        if tiny.is_shifted and len(x) % length == 0:
            x += best(tiny, denoiser, x, [-1], block_length=length)[0].tolist()
        start = len(x) // length * length
        x += [MASK] * (start + length - len(x))
        for first in range(start, start + length, window):
            while MASK in x[first : first + window]:
                rows = np.array([at for at in range(first, first + window) if x[at] == MASK])
                tokens, chances = best(tiny, denoiser, x, rows - tiny.is_shifted, block_length=length)
                chosen = chances > threshold
                chosen[chances.argmax()] = True
                for at in np.flatnonzero(chosen):
                    x[rows[at]] = tokens[at]
    return x[len(prompt) :]


def verified_fill(tiny, denoiser, prompt):
    """Nemotron's: whatever is drafted, the verified tokens are those of the causal model."""
    x = list(prompt)
    while len(x) < len(prompt) + NUM_TOKENS:
        x += best(tiny, denoiser, x, [-1], num_causal=len(x))[0].tolist()
    return x[len(prompt) :]


def until_end(ids, denoiser):
    return ids[: next((at for at, token in enumerate(ids) if token in denoiser.spec.end_ids), len(ids))]


def filled(denoiser, prompt, threshold, decoder_class=DiffusionDecoder):
    """The tokens of a fill of whole blocks."""
    sampling = replace(denoiser.spec.sampling, confidence_threshold=threshold)
    denoiser.spec = replace(denoiser.spec, sampling=sampling)
    limits = Limits(denoiser.spec.canvas_lengths[-1], NUM_TOKENS, None)
    model = EngineModel.of(denoiser, denoiser._model.tokenizer)
    task = DecodeTask(model, possible_decoders(model.spec)[0], Layout(token_ids(prompt)), limits, RequestCosts())
    # a text without repetitions, so that only the length ends a fill
    task.stop = StopCriteria(lambda ids: "".join(map(chr, range(300, 300 + len(ids)))).encode(), limits)
    (draft,) = drain(decoder_class(task).run())
    return draft.ids.tolist()


def test_predictions_of_a_mixture_of_experts_are_those_of_block_causal_attention(open_case):
    """A fill would depend on the rounding of the processor: a token's experts may change with it."""
    length = MIXTURE.block_length
    tiny, denoiser = open_case(MIXTURE)
    rng = np.random.default_rng(4)
    for num_prompt in (1, length - 1, 2 * length + 1, 67, 64):
        prompt = rng.integers(5, 200, num_prompt)
        denoiser.prefill(0, token_ids(prompt))
        canvas = rng.integers(5, 200, length - num_prompt % length)
        canvas[::2] = MASK
        [prediction] = predict(denoiser, canvas)
        tiny_masked.check(prediction, tiny, prompt, canvas, denoiser.spec.banned_ids, EXACT, block_length=length)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fills_are_those_of_the_authors_sampler(open_case, case):
    tiny, denoiser = open_case(case)
    assert denoiser.spec.canvas_lengths == (case.block_length,)
    rng = np.random.default_rng(5)
    for num_prompt in (45, 47, 64):
        prompt = rng.integers(5, 200, num_prompt).tolist()
        expected = until_end(authors_fill(tiny, denoiser, prompt, case.threshold), denoiser)
        fill = filled(denoiser, prompt, case.threshold)
        assert fill[:NUM_TOKENS] == expected[:NUM_TOKENS]


def test_drafts_and_verified_tokens_are_those_of_nemotron(open_case):
    tiny, denoiser = open_case(DRAFTER)
    rng = np.random.default_rng(7)
    for num_prompt in (30, 31, 33):
        prompt = rng.integers(5, 200, num_prompt).tolist()
        denoiser.prefill(0, token_ids(prompt[:-1]))
        block = [prompt[-1], *[MASK] * 31]
        [prediction] = predict(denoiser, block)
        num_causal = len(prompt) - 1
        tiny_masked.check(prediction, tiny, prompt[:-1], block, denoiser.spec.banned_ids, EXACT, num_causal)
        expected = until_end(verified_fill(tiny, denoiser, prompt), denoiser)
        for decoder in (SpeculativeDecoder, AutoregressiveDecoder):
            fill = filled(denoiser, prompt, DRAFTER.threshold, decoder)
            assert fill[:NUM_TOKENS] == expected[:NUM_TOKENS]
