"""DiffusionGemma on llama.cpp against Hugging Face transformers: logits, entropies and what is accepted, at every step.

Both are given the same canvases, and the noise of each step. With a cache in float32 what is left is llama.cpp's
half-precision tables; the cache of the product is float16. Logits here have a standard deviation of 2.4;
self-conditioning changes them by 6, a prompt's first token by 8, a canvas's last by 4.
"""

from dataclasses import replace

import numpy as np
import pytest
import tiny_diffusiongemma as tiny
from diffusiongemma_reference import Reference, calm_model, clear_bounds
from margins import lead

from dg_lsp.backends.llamacpp import LlamaModel
from dg_lsp.backends.llamacpp.device_feedback import DeviceFeedback
from dg_lsp.backends.llamacpp.diffusiongemma import SelfConditionedDenoiser
from dg_lsp.backends.llamacpp.library import library
from dg_lsp.backends.llamacpp.runtime_check import supports_bidirectional
from dg_lsp.canvas.layout import token_ids
from dg_lsp.diffusion.samplers import accept
from dg_lsp.models.metadata import describe
from dg_lsp.settings import RuntimeSettings

pytestmark = pytest.mark.skipif(
    not supports_bidirectional(),
    reason="llama.cpp as installed; make the changed one with: dg-lsp models build-runtime",
)

WINDOW = 96
TEMPERATURES = (0.8, 0.7, 0.6, 0.5)
CPU = RuntimeSettings(threads=1, gpu_layers=0)
TOLERANCE = {"float32": 0.08, "float16": 0.2}
"""Largest difference of a logit."""
ENTROPY_TOLERANCE = {"float32": 0.03, "float16": 0.06}
"""Largest difference of a position's entropy, in nats."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parity")
    tiny.write_checkpoint(folder, model=calm_model(tiny.TinyShape(window=WINDOW)))
    tiny.write_repacked(folder, folder / "tiny.gguf")
    return folder


@pytest.fixture(scope="module")
def reference(checkpoint):
    return Reference(checkpoint)


class Recording:
    """A denoiser, and the logits of its last pass."""

    def __init__(self, path, mass, kinds):
        model = LlamaModel.load(path, CPU)
        model.on_gpu = bool(kinds)
        spec = replace(describe(model.metadata, model.vocab_size, "tiny"), banned_ids=())
        self.denoiser = SelfConditionedDenoiser(model, spec, CPU, mass=mass, kinds=kinds)
        self.logits = None
        self._reduce = self.denoiser._reducer.reduce
        self.denoiser._reducer.reduce = self._recorded

    def _recorded(self, logits, *rest):
        self.logits = logits.copy()
        return self._reduce(logits, *rest)

    def predict(self, canvas, temperature):
        (prediction,) = self.denoiser.predict(0, [token_ids(canvas)], temperature, np.random.default_rng(0))
        return prediction

    def conditioned_on(self, said):
        """The next pass hears these tempered logits, not what this runtime said itself."""
        prediction = self.denoiser._reducer.reduce(said.copy(), 1.0, np.random.default_rng(0))
        self.denoiser._said[0] = self.denoiser._remembered([prediction], [0])


@pytest.fixture
def opened(checkpoint, monkeypatch):
    """Opens denoisers, with a cache as shipped or in float32."""
    denoisers = []
    default = library().api.llama_context_default_params

    def exact():
        params = default()
        params.type_k = params.type_v = 0  # GGML_TYPE_F32
        return params

    def open_one(cache="float16", mass=1.0, kinds=()):
        if cache == "float32":
            monkeypatch.setattr(library().api, "llama_context_default_params", exact)
        recording = Recording(checkpoint / "tiny.gguf", mass, kinds)
        denoisers.append(recording.denoiser)
        return recording

    yield open_one
    for denoiser in denoisers:
        denoiser.close()


def material(num_prompt, length, seed=0):
    """Prompt, canvas, and the noise of each step."""
    rng = np.random.default_rng([num_prompt, length, seed])
    ids = [rng.integers(0, tiny.VOCAB_SIZE, shape).astype(np.int32) for shape in (num_prompt, length, (4, length))]
    return token_ids(ids[0]), ids[1], ids[2]


def check_step(prediction, logits, step, cache="float32", frozen=None):
    tolerance, slack = TOLERANCE[cache], ENTROPY_TOLERANCE[cache]
    assert np.abs(logits - step.logits).max() < tolerance
    assert lead(step.logits, prediction.argmax_ids).max() < 2 * tolerance
    entropy = prediction.entropy if frozen is None else np.where(frozen, np.float32(0), prediction.entropy)
    assert np.abs(entropy - step.entropy).max() < slack
    bounds = list(clear_bounds(step.entropy, slack))
    for bound in bounds:
        np.testing.assert_array_equal(accept(entropy, bound), accept(step.entropy.astype(np.float32), bound))
    return len(bounds)


@pytest.mark.parametrize("cache", ["float32", "float16"])
@pytest.mark.parametrize("length", [8, 16, 32, 64])
@pytest.mark.parametrize("num_prompt", [1, 32])
def test_every_step_is_the_references(reference, opened, num_prompt, length, cache):
    """The first step, and three that are conditioned on what the reference said before."""
    prompt, canvas, noise = material(num_prompt, length)
    recording = opened(cache)
    recording.denoiser.prefill(0, prompt)
    num_bounds = 0
    for step in reference.steps(prompt, canvas, TEMPERATURES, noise, bound=3.0):
        if step.said is not None:
            recording.conditioned_on(step.said)
        prediction = recording.predict(step.canvas, step.temperature)
        num_bounds += check_step(prediction, recording.logits, step, cache)
    assert num_bounds or cache == "float16"  # whose rounding may leave no bound clear


def test_what_a_device_feeds_back_is_the_references(reference, opened):
    """As if the model were on a GPU: ggml's CPU computes the same graphs, from a table in half precision."""
    prompt, canvas, noise = material(20, 32)
    recording = opened("float32", kinds=(0,))
    assert isinstance(recording.denoiser._feedback, DeviceFeedback)
    recording.denoiser.prefill(0, prompt)
    for step in reference.steps(prompt, canvas, TEMPERATURES, noise, bound=3.0):
        if step.said is not None:
            recording.conditioned_on(step.said)
        prediction = recording.predict(step.canvas, step.temperature)
        check_step(prediction, recording.logits, step, "float16")


@pytest.mark.parametrize("length", [8, 32])
def test_steps_that_condition_each_other_stay_the_references(reference, opened, length):
    """Nothing is given but canvases: rounding adds up over the steps, and no more than that."""
    prompt, canvas, noise = material(20, length)
    recording = opened("float32")
    recording.denoiser.prefill(0, prompt)
    for step in reference.steps(prompt, canvas, TEMPERATURES, noise, bound=3.0):
        prediction = recording.predict(step.canvas, step.temperature)
        assert np.sqrt(np.square(recording.logits - step.logits).mean()) < 0.1
        assert lead(step.logits, prediction.argmax_ids).max() < 0.5


@pytest.mark.parametrize("length", [8, 32, 64])
@pytest.mark.parametrize("num_prompt", [88, 95, 96, 300])
def test_beyond_the_window_every_step_is_the_references(reference, opened, num_prompt, length):
    """Every position of a canvas sees the same last tokens of the prompt; a window of its own would be far off."""
    prompt, canvas, noise = material(num_prompt, length)
    recording = opened("float32")
    recording.denoiser.prefill(0, prompt)
    for step in reference.steps(prompt, canvas, TEMPERATURES, noise, bound=3.0):
        if step.said is not None:
            recording.conditioned_on(step.said)
        prediction = recording.predict(step.canvas, step.temperature)
        check_step(prediction, recording.logits, step)
    (first,) = reference.steps(prompt, canvas, TEMPERATURES[:1], noise[:1])
    (windowed,) = reference.steps(prompt, canvas, TEMPERATURES[:1], noise[:1], per_token=True)
    is_cut = num_prompt + length > WINDOW
    assert (np.abs(first.logits - windowed.logits).max() > 10 * TOLERANCE["float32"]) == is_cut


def test_canvases_raced_beyond_the_window_each_see_the_prompts_end(reference, opened):
    """One pass over three canvases, each a sequence of its own."""
    prompt, canvas, noise = material(150, 16)
    canvases = [canvas, noise[0], noise[1]]
    recording = opened("float32")
    recording.denoiser.prefill(0, prompt)
    recording.denoiser.predict(0, [token_ids(each) for each in canvases], 0.8, np.random.default_rng(0))
    cache = reference.encoded(prompt)
    expected = np.concatenate([reference.logits(cache, len(prompt), each) for each in canvases])
    assert np.abs(recording.logits - expected).max() < TOLERANCE["float32"]


def test_frozen_positions_are_conditioned_on_what_the_model_says_of_them(reference, opened):
    prompt, canvas, noise = material(20, 32)
    frozen = np.arange(32) % 3 == 0
    recording = opened("float32")
    recording.denoiser.prefill(0, prompt)
    for step in reference.steps(prompt, canvas, TEMPERATURES, noise, frozen=frozen, bound=3.0):
        np.testing.assert_array_equal(step.canvas[frozen], canvas[frozen])
        if step.said is not None:
            recording.conditioned_on(step.said)
        prediction = recording.predict(step.canvas, step.temperature)
        check_step(prediction, recording.logits, step, frozen=frozen)


@pytest.mark.parametrize("num_prompt", [30, 200])
def test_keystrokes_leave_the_cache_as_if_it_were_new(reference, opened, num_prompt):
    """Typed, taken back, replaced and pasted: below the window and beyond it."""
    prompt, canvas, noise = material(num_prompt, 16)
    other = material(num_prompt, 16, seed=1)[0]
    recording = opened("float32")
    kept = len(prompt) // 2
    pasted = token_ids(np.concatenate([prompt[:kept], other[:25], prompt[kept:]]))
    for typed in (prompt, prompt[:-1], prompt[:-5], other, prompt[:kept], pasted, prompt):
        num_decoded = recording.denoiser.prefill(0, token_ids(typed))
        prediction = recording.predict(canvas, 0.8)
    assert num_decoded < len(prompt)
    (step,) = reference.steps(prompt, canvas, (0.8,), noise[:1])
    check_step(prediction, recording.logits, step)


def test_what_is_fed_back_sparsely_changes_less_than_what_is_left_out(reference, opened):
    """0.99 of the mass, against all of it."""
    prompt, canvas, noise = material(20, 32)
    steps = list(reference.steps(prompt, canvas, TEMPERATURES, noise, bound=3.0))
    logits = {}
    for mass in (1.0, 0.99, 0.5):
        recording = opened("float32", mass)
        recording.denoiser.prefill(0, prompt)
        recording.conditioned_on(steps[-1].said)
        recording.predict(steps[-1].canvas, steps[-1].temperature)
        logits[mass] = recording.logits
    near, far = (np.abs(logits[mass] - logits[1.0]).max() for mass in (0.99, 0.5))
    assert near < 0.1
    assert far > 3 * near
