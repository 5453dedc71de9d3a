import numpy as np

from dg_lsp.backends.scripted import MASK_SPEC, UNIFORM_SPEC, ScriptedDenoiser
from dg_lsp.canvas.layout import Canvas, Layout, token_ids
from dg_lsp.diffusion.samplers import Stop, denoise, denoise_together


def start(fill, spec=MASK_SPEC, length=16, **script):
    denoiser = ScriptedDenoiser(fill, spec=spec, **script)
    fim = spec.fim
    prompt = token_ids([fim.suffix_id, fim.prefix_id, fim.middle_id])
    denoiser.prefill(0, prompt)
    return denoiser, Layout(prompt).canvas(length, spec, np.random.default_rng(0))


def text(denoiser, step):
    return denoiser.tokenizer.decode(step.canvas_ids[: step.num_settled]).decode()


def steps_of(denoiser, canvas):
    return list(denoise(denoiser, 0, canvas, denoiser.spec.sampling, np.random.default_rng(0)))


def test_masks_are_replaced_step_by_step_until_the_end_token():
    denoiser, canvas = start("return x", tokens_per_step=4)
    steps = steps_of(denoiser, canvas)
    assert [text(denoiser, step) for step in steps] == ["retu", "return x", "return x"]
    assert [step.number for step in steps] == [1, 2, 3]
    assert steps[-1].stop is Stop.FILLED
    assert len(steps[-1].canvas_ids) == len("return x") + 1


def test_the_steps_depend_on_the_seed_only_and_a_closed_loop_runs_none():
    denoiser, canvas = start("deterministic", spec=UNIFORM_SPEC, tokens_per_step=2)
    first, second = (denoise(denoiser, 0, canvas, denoiser.spec.sampling, np.random.default_rng(0)) for _ in range(2))
    assert [next(first).canvas_ids.tolist() for _ in range(3)] == [next(second).canvas_ids.tolist() for _ in range(3)]
    first.close()
    assert denoiser.num_steps == 6


def test_a_frozen_canvas_needs_at_most_one_pass():
    denoiser, canvas = start("x")
    full = Canvas(canvas.prompt_ids, token_ids([70, 71]), np.ones(2, bool))
    assert steps_of(denoiser, full)[-1].canvas_ids.tolist() == [70, 71]
    assert denoiser.num_steps <= 1


def test_several_canvases_share_each_pass():
    denoiser, canvas = start(["a longer one", "short"], tokens_per_step=4)
    states = list(denoise_together(denoiser, 0, [canvas, canvas], denoiser.spec.sampling, np.random.default_rng(0)))
    assert denoiser.num_steps == len(states)
    assert [text(denoiser, step) for step in states[-1]] == ["a longer one", "short"]
    assert states[1][0].stop is None
    assert states[1][1].stop is Stop.FILLED


def test_uniform_noise_converges_to_the_scripted_text():
    denoiser, canvas = start("ok", spec=UNIFORM_SPEC, length=8, tokens_per_step=8)
    steps = steps_of(denoiser, canvas)
    assert steps[-1].stop is not None
    assert denoiser.tokenizer.decode(steps[-1].canvas_ids) == b"ok"
