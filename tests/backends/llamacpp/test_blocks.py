"""Models with blocks in a causal or block-causal context, against the sampling code of their authors over numpy.

The samplers here follow the authors' code: `block_diffusion_generate` (SDAR, Stable-DiffCoder), `batch_sample`
(Fast-dLLM v2) and `linear_spec_generate` (Nemotron-Labs-Diffusion), at temperature 0.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import tiny_masked
from margins import predict
from tiny_masked import MASK, softmax

from dg_lsp.canvas.layout import Layout, common_prefix_length, token_ids
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.engine.decode_task import DecodeTask, EngineModel
from dg_lsp.engine.decoders.autoregressive import AutoregressiveDecoder, SpeculativeDecoder
from dg_lsp.engine.decoders.base import Limits, RequestCosts, StopCriteria
from dg_lsp.engine.decoders.diffusion import DiffusionDecoder
from dg_lsp.engine.engine import drain

pytestmark = pytest.mark.usefixtures("full_precision")
EXACT = 1e-4
NUM_FILLS, NUM_TOKENS = 8, 24


@dataclass(frozen=True)
class Case:
    architecture: str
    name: str
    block_length: int
    threshold: float  # of the test: random weights are rarely as sure as the family's threshold


BLOCKS = (
    Case("llama", "Stable DiffCoder 8B", 4, 0.5),
    Case("qwen3", "SDAR 1.7B Chat", 4, 0.3),
    Case("qwen3", "SDAR 8B Chat b32", 32, 0.5),
    Case("qwen3moe", "SDAR 30B A3B Chat b16", 16, 0.85),
    Case("bailingmoe2", "LLaDA2.0 Mini", 32, 0.95),
)
SHIFTED = Case("qwen2", "Fast dLLM v2 7B", 32, 0.5)
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


def block_diffusion_generate(tiny, denoiser, prompt, threshold):
    """SDAR's generate.py with `low_confidence_dynamic`, one token at least in each step."""
    length = denoiser.spec.block_length
    x = list(prompt)
    while len(x) < len(prompt) + NUM_TOKENS:
        start = len(x) // length * length
        x += [MASK] * (start + length - len(x))
        while MASK in x:
            rows = [at for at in range(start, len(x)) if x[at] == MASK]
            tokens, chances = best(tiny, denoiser, x, rows, block_length=length)
            chosen = chances > threshold
            chosen[chances.argmax()] = True
            for at in np.flatnonzero(chosen):
                x[rows[at]] = tokens[at]
    return x[len(prompt) :]


def fast_dllm_generate(tiny, denoiser, prompt, threshold):
    """Fast-dLLM's batch_sample: the logits at a position predict the next one, windows of 8 are filled in order."""
    length, x = denoiser.spec.block_length, list(prompt)
    if len(x) % length == 0:
        x += best(tiny, denoiser, x, [-1], block_length=length)[0].tolist()
    while len(x) < len(prompt) + NUM_TOKENS:
        start = len(x) // length * length
        x += [MASK] * (start + length - len(x))
        for window in range(start, start + length, 8):
            while MASK in x[window : window + 8]:
                rows = np.array([at for at in range(window, window + 8) if x[at] == MASK])
                tokens, chances = best(tiny, denoiser, x, np.maximum(rows - 1, start), block_length=length)
                chosen = chances > threshold
                chosen[chances.argmax()] = True
                for at in np.flatnonzero(chosen):
                    x[rows[at]] = tokens[at]
        x += best(tiny, denoiser, x, [-1], block_length=length)[0].tolist()
    return x[len(prompt) :]


def linear_spec_generate(tiny, denoiser, prompt):
    """Nemotron's: a block of the newest token and masks drafts, a causal pass verifies and adds a token."""
    length = denoiser.spec.canvas_lengths[-1]
    x = list(prompt) + best(tiny, denoiser, prompt, [-1], num_causal=len(prompt))[0].tolist()
    while len(x) < len(prompt) + NUM_TOKENS:
        known = len(x) - 1
        block = [x[-1], *[MASK] * (length - 1)]
        drafted, _ = best(tiny, denoiser, [*x[:-1], *block], slice(known + 1, None), num_causal=known)
        block[1:] = drafted.tolist()
        verified, _ = best(tiny, denoiser, [*x[:-1], *block], slice(known, None), num_causal=known + length)
        agreed = common_prefix_length(np.array(block[1:]), verified)
        x += verified[: agreed + 1].tolist()
    return x[len(prompt) :]


def until_end(ids, denoiser):
    return ids[: next((at for at, token in enumerate(ids) if token in denoiser.spec.end_ids), len(ids))]


def filled(denoiser, prompt, threshold, decoder_class=DiffusionDecoder):
    """The tokens of a fill of whole blocks."""
    sampling = replace(denoiser.spec.sampling, confidence_threshold=threshold)
    denoiser.spec = replace(denoiser.spec, sampling=sampling)
    limits = Limits(denoiser.spec.canvas_lengths[-1], NUM_TOKENS, None)
    model = EngineModel.of(denoiser, denoiser._model.tokenizer)
    task = DecodeTask(model, DecoderName.AUTO, Layout(token_ids(prompt)), limits, RequestCosts())
    # a text without repetitions, so that only the length ends a fill
    task.stop = StopCriteria(lambda ids: "".join(map(chr, range(300, 300 + len(ids)))).encode(), limits)
    (draft,) = drain(decoder_class(task).run())
    return draft.ids.tolist()


@pytest.mark.parametrize("case", [*BLOCKS, SHIFTED], ids=lambda case: case.name)
def test_predictions_are_those_of_block_causal_attention(open_case, case):
    tiny, denoiser = open_case(case)
    spec, length = denoiser.spec, case.block_length
    assert (spec.block_length, spec.canvas_lengths, spec.is_bidirectional) == (length, (length,), False)
    rng = np.random.default_rng(4)
    for num_prompt in (1, length - 1, 2 * length + 1, 67, 64, 65, 30, 96):
        prompt = rng.integers(5, 200, num_prompt)
        denoiser.prefill(0, token_ids(prompt))
        for share in (0.2, 1.0):
            canvas = rng.integers(5, 200, length - num_prompt % length)
            canvas[rng.random(len(canvas)) < share] = MASK
            canvas[-1] = MASK
            if spec.is_shifted and canvas[0] == MASK and not num_prompt % length:
                canvas[0] = predict(denoiser, canvas)[0].argmax_ids[0]
            [prediction] = predict(denoiser, canvas)
            tiny_masked.check(prediction, tiny, prompt, canvas, denoiser.spec.banned_ids, EXACT, block_length=length)


@pytest.mark.parametrize("case", [*BLOCKS[:3], SHIFTED], ids=lambda case: case.name)
def test_fills_are_those_of_the_authors_sampler(open_case, case):
    tiny, denoiser = open_case(case)
    reference = fast_dllm_generate if case is SHIFTED else block_diffusion_generate
    rng = np.random.default_rng(5)
    for number in range(NUM_FILLS):
        prompt = rng.integers(5, 200, 45 + number).tolist()
        expected = until_end(reference(tiny, denoiser, prompt, case.threshold), denoiser)
        fill = filled(denoiser, prompt, case.threshold)
        assert fill[:NUM_TOKENS] == expected[:NUM_TOKENS]


def test_drafts_and_verified_tokens_are_those_of_nemotron(open_case):
    tiny, denoiser = open_case(DRAFTER)
    rng = np.random.default_rng(7)
    for number in range(NUM_FILLS):
        prompt = rng.integers(5, 200, 30 + number).tolist()
        denoiser.prefill(0, token_ids(prompt[:-1]))
        block = [prompt[-1], *[MASK] * 31]
        [prediction] = predict(denoiser, block)
        num_causal = len(prompt) - 1
        tiny_masked.check(prediction, tiny, prompt[:-1], block, denoiser.spec.banned_ids, EXACT, num_causal)
        expected = until_end(linear_spec_generate(tiny, denoiser, prompt), denoiser)
        for decoder in (SpeculativeDecoder, AutoregressiveDecoder):
            fill = filled(denoiser, prompt, DRAFTER.threshold, decoder)
            assert fill[:NUM_TOKENS] == expected[:NUM_TOKENS]
