"""DiffusionGemma on llama.cpp compared with transformers: logits and entropies of every step.

Both get the same canvases, noise and conditioning. With a cache in float32, llama.cpp's half-precision tables remain;
the default cache is float16. Logits have a standard deviation of 2.4 here; self-conditioning changes them by 6, the
first token of a prompt by 8, the last token of a canvas by 4.
"""

from functools import partial

import numpy as np
import pytest
import tiny_diffusiongemma as tiny
import torch
from diffusiongemma_reference import Reference, calm_model
from margins import entropy_of, lead, predict, shares_of

from dg_lsp.canvas.layout import token_ids
from dg_lsp.diffusion.samplers import accept

WINDOW = 96
TEMPERATURES = (0.8, 0.7, 0.6, 0.5)
TOLERANCE = {"float32": 0.08, "float16": 0.2}
"""Largest difference of a logit."""
ENTROPY_TOLERANCE = {"float32": 0.03, "float16": 0.06}
"""Largest difference of a position's entropy, in nats."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parity")
    tiny.write_checkpoint(folder, calm_model(WINDOW))
    tiny.write_repacked(folder, folder / "tiny.gguf")
    return folder


@pytest.fixture(scope="module")
def reference(checkpoint):
    return Reference.load(checkpoint)


@pytest.fixture
def open_denoiser(checkpoint, open_gemma):
    """Opens a denoiser that feeds back all of the probability, on the host or on a device."""
    return partial(open_gemma, path=checkpoint / "tiny.gguf", spec={"banned_ids": ()}, mass=1.0)


def check(denoiser, reference, material, cache="float32"):
    """Compares all steps. The reference is conditioned on the logits of the denoiser's last step."""
    prompt, canvas, noise = material
    tolerance = TOLERANCE[cache]
    encoded, conditioning = reference.encoded(prompt), None
    denoiser.prefill(0, prompt)
    for temperature, fresh in zip(TEMPERATURES, noise, strict=True):
        (prediction,) = predict(denoiser, canvas, temperature=temperature)
        logits = denoiser._reduction.logits(range(len(canvas)))
        expected = reference.logits(encoded, canvas, conditioning).numpy()
        assert np.abs(logits - expected).max() < tolerance
        assert lead(expected, prediction.argmax_ids).max() < 2 * tolerance
        entropy = entropy_of(shares_of(expected, temperature))
        assert np.abs(prediction.entropy - entropy).max() < ENTROPY_TOLERANCE[cache]
        conditioning = torch.from_numpy(logits / np.float32(temperature))
        canvas = np.where(accept(entropy, 3.0), expected.argmax(axis=1), fresh).astype(np.int32)


def material(num_prompt, length):
    """Prompt, canvas and the noise of each step."""
    rng = np.random.default_rng([num_prompt, length, 0])
    ids = [rng.integers(0, tiny.VOCAB_SIZE, shape).astype(np.int32) for shape in (num_prompt, length, (4, length))]
    return token_ids(ids[0]), ids[1], ids[2]


@pytest.mark.parametrize(
    ("num_prompt", "cache"),
    [(1, "float16"), (32, "float16"), *((number, "float32") for number in (1, 32, 88, 95, 96, 300))],
)
def test_every_step_equals_the_references(request, reference, open_denoiser, num_prompt, cache):
    """Beyond the window, all positions of a canvas attend to the same last prompt tokens."""
    if cache == "float32":
        request.getfixturevalue("full_precision")
    denoiser = open_denoiser()
    for length in (8, 16, 32, 64):
        check(denoiser, reference, material(num_prompt, length), cache)


def test_every_step_on_a_device_equals_the_references(full_precision, reference, open_denoiser):
    """ggml's CPU device computes the graphs of a GPU, from a table in half precision."""
    denoiser = open_denoiser(on_device=True)
    assert denoiser.footprint.gpu_estimate > 0
    check(denoiser, reference, material(20, 32), "float16")
