"""DiffusionGemma on llama.cpp compared with transformers: logits, entropies and accepted positions of every step.

Both get the same canvases and the same noise. With a cache in float32, llama.cpp's half-precision tables remain; the
default cache is float16. Logits have a standard deviation of 2.4 here; self-conditioning changes them by 6, the first
token of a prompt by 8, the last token of a canvas by 4.
"""

from dataclasses import replace

import numpy as np
import pytest
import tiny_diffusiongemma as tiny
from diffusiongemma_reference import Reference, calm_model, clear_bounds
from margins import lead

from dg_lsp.backends.llamacpp import LlamaModel
from dg_lsp.backends.llamacpp.device_graph import functions
from dg_lsp.backends.llamacpp.diffusiongemma.denoiser import SelfConditionedDenoiser
from dg_lsp.backends.llamacpp.diffusiongemma.self_conditioning import DeviceFeedback, mixture
from dg_lsp.backends.llamacpp.library import runs_diffusiongemma
from dg_lsp.canvas.layout import token_ids
from dg_lsp.diffusion.samplers import accept
from dg_lsp.models.metadata import describe
from dg_lsp.settings import ModelSettings

pytestmark = pytest.mark.skipif(
    not runs_diffusiongemma(),
    reason="the installed llama.cpp is not changed; run: dg-lsp models build-runtime",
)

WINDOW = 96
TEMPERATURES = (0.8, 0.7, 0.6, 0.5)
CPU = ModelSettings(threads=1, gpu_layers=0)
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


class Recording:
    """A denoiser, and the logits of its last pass."""

    def __init__(self, path, cache, mass, kinds):
        model = LlamaModel.load(path, CPU)
        model.on_gpu = bool(kinds)
        spec = replace(describe(model.metadata, model.vocab_size, "tiny"), banned_ids=())
        self.denoiser = SelfConditionedDenoiser(model, spec, CPU, mass=mass, kinds=kinds)
        self.cache = cache
        self.logits = None

    def predict(self, canvas, temperature, conditioning=None):
        """`conditioning` replaces the last prediction by these tempered logits."""
        if conditioning is not None:
            self.denoiser._records[0] = {0: self._record(conditioning)}
        (prediction,) = self.denoiser.predict(0, [token_ids(canvas)], temperature, np.random.default_rng(0))
        self.logits = self.denoiser._reduction.logits(range(len(canvas))).copy()
        return prediction

    def _record(self, logits):
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        feedback = self.denoiser._reduction.feedback
        if isinstance(feedback, DeviceFeedback):
            means = (self.denoiser._table.mix(None, shares) * self.denoiser._table.scale).astype(np.float32)
            # the device's memory, from its second row on
            functions().backend_tensor_set(feedback.tensors[5], means.ctypes.data, means[0].nbytes, means.nbytes)
            return np.arange(1, 1 + len(means), dtype=np.int32)
        order = np.argsort(-shares, axis=1).astype(np.int32)
        entropy = -(shares * np.log(shares + 1e-30)).sum(axis=1)
        every = np.arange(len(shares))
        weights = (shares / shares.max(axis=1, keepdims=True)).astype(np.float32)
        top_shares = np.take_along_axis(shares, order, 1)
        return mixture(order, top_shares, every, weights, entropy, feedback.mass, shares.shape[1])

    def check(self, steps, frozen=None):
        """Compares all steps; returns the number of entropy bounds at which accepted positions could be compared."""
        tolerance, slack = TOLERANCE[self.cache], ENTROPY_TOLERANCE[self.cache]
        num_bounds = 0
        for step in steps:
            prediction = self.predict(step.canvas, step.temperature, step.conditioning)
            assert np.abs(self.logits - step.logits).max() < tolerance
            assert lead(step.logits, prediction.argmax_ids).max() < 2 * tolerance
            entropy = prediction.entropy if frozen is None else np.where(frozen, np.float32(0), prediction.entropy)
            assert np.abs(entropy - step.entropy).max() < slack
            for bound in clear_bounds(step.entropy, slack):
                num_bounds += 1
                expected = accept(step.entropy.astype(np.float32), bound)
                np.testing.assert_array_equal(accept(entropy, bound), expected)
        return num_bounds


@pytest.fixture
def record(checkpoint, request, opened):
    """Opens denoisers with a cache in float16 or float32."""

    def open_recording(prompt, cache="float32", mass=1.0, kinds=()):
        if cache == "float32":
            request.getfixturevalue("full_precision")
        recording = Recording(checkpoint / "tiny.gguf", "float16" if kinds else cache, mass, kinds)
        opened(recording.denoiser).prefill(0, prompt)
        return recording

    return open_recording


def material(num_prompt, length, seed=0):
    """Prompt, canvas and the noise of each step."""
    rng = np.random.default_rng([num_prompt, length, seed])
    ids = [rng.integers(0, tiny.VOCAB_SIZE, shape).astype(np.int32) for shape in (num_prompt, length, (4, length))]
    return token_ids(ids[0]), ids[1], ids[2]


@pytest.mark.parametrize("cache", ["float32", "float16"])
@pytest.mark.parametrize("length", [8, 16, 32, 64])
@pytest.mark.parametrize("num_prompt", [1, 32])
def test_every_step_equals_the_references(reference, record, num_prompt, length, cache):
    prompt, canvas, noise = material(num_prompt, length)
    num_bounds = record(prompt, cache).check(reference.steps(prompt, canvas, TEMPERATURES, noise, bound=3.0))
    assert num_bounds or cache == "float16"  # rounding may leave no clear bound


def test_every_step_on_a_device_equals_the_references(reference, record):
    """ggml's CPU device computes the graphs of a GPU, from a table in half precision."""
    prompt, canvas, noise = material(20, 32)
    recording = record(prompt, kinds=("cpu",))
    assert isinstance(recording.denoiser._reduction.feedback, DeviceFeedback)
    recording.check(reference.steps(prompt, canvas, TEMPERATURES, noise, bound=3.0))


@pytest.mark.parametrize("length", [8, 32, 64])
@pytest.mark.parametrize("num_prompt", [88, 95, 96, 300])
def test_every_step_beyond_the_window_equals_the_references(reference, record, num_prompt, length):
    """All positions of a canvas attend to the same last prompt tokens; a window for each token would be far off."""
    prompt, canvas, noise = material(num_prompt, length)
    record(prompt).check(reference.steps(prompt, canvas, TEMPERATURES, noise, bound=3.0))
    first, windowed = (
        reference.steps(prompt, canvas, TEMPERATURES[:1], noise[:1], per_token=per_token)[0].logits
        for per_token in (False, True)
    )
    is_cut = num_prompt + length > WINDOW
    assert (np.abs(first - windowed).max() > 10 * TOLERANCE["float32"]) == is_cut


def test_canvases_of_one_pass_attend_to_the_end_of_a_long_prompt(reference, record):
    prompt, canvas, noise = material(150, 16)
    canvases = [canvas, noise[0], noise[1]]
    recording = record(prompt)
    recording.denoiser.predict(0, [*map(token_ids, canvases)], 0.8, np.random.default_rng(0))
    cache = reference.encoded(prompt)
    expected = np.concatenate([reference.logits(cache, ids) for ids in canvases])
    logits = recording.denoiser._reduction.logits(range(len(expected)))
    assert np.abs(logits - expected).max() < TOLERANCE["float32"]


def test_frozen_positions_are_conditioned_on_the_models_prediction(reference, record):
    prompt, canvas, noise = material(20, 32)
    frozen = np.arange(32) % 3 == 0
    steps = reference.steps(prompt, canvas, TEMPERATURES, noise, frozen=frozen, bound=3.0)
    assert all(np.array_equal(step.canvas[frozen], canvas[frozen]) for step in steps)
    record(prompt).check(steps, frozen)
