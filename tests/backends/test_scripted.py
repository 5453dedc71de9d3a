"""The scripted model: kinds of scripts, and the counters that tests read."""

import numpy as np
import pytest

from dg_lsp.backends.scripted import END_ID, MASK_ID, UNIFORM_SPEC, ByteTokenizer, ScriptedDenoiser

TOKENIZER = ByteTokenizer()


def fim(prefix, suffix, middle=""):
    parts = (("<suffix>", suffix), ("<prefix>", prefix), ("<middle>", middle))
    ids = [[TOKENIZER.special(name), *TOKENIZER.encode(text)] for name, text in parts]
    return np.concatenate(ids).astype(np.int32)


def masks(length):
    return np.full(length, MASK_ID, dtype=np.int32)


def text(prediction):
    return TOKENIZER.decode(prediction.argmax_ids).decode()


def predict(denoiser, *canvases, temperature=0.0):
    return denoiser.predict(0, list(canvases), temperature, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("script", "prompt", "texts"),
    [
        pytest.param("x = 1", fim("", ""), ["x = 1"], id="one text"),
        pytest.param(["one", "two"], fim("", ""), ["one", "two", "two"], id="a text for each canvas"),
        pytest.param("hello world", fim("p", "s", "hello "), ["world"], id="the rest of a continued text"),
        pytest.param("hello world", fim("p", "s", "bye"), [""], id="nothing after another text"),
    ],
)
def test_text_is_predicted_and_followed_by_end_tokens(script, prompt, texts):
    denoiser = ScriptedDenoiser(script)
    denoiser.prefill(0, prompt)
    predictions = predict(denoiser, *[masks(8)] * len(texts))
    assert [text(prediction) for prediction in predictions] == texts
    assert all(prediction.argmax_ids[-1] == END_ID for prediction in predictions)


def test_function_receives_prefix_and_suffix():
    calls = []
    denoiser = ScriptedDenoiser(lambda prefix, suffix: calls.append((prefix, suffix)) or prefix[-1] + suffix[0])
    denoiser.prefill(0, fim("ä1", "😋2"))
    assert text(predict(denoiser, masks(8))[0]) == "1😋"
    assert calls == [("ä1", "😋2")]


def test_step_is_confident_of_the_leftmost_open_tokens():
    denoiser = ScriptedDenoiser("abcdefgh", tokens_per_step=3)
    denoiser.prefill(0, fim("", ""))
    canvas = masks(8)
    for step in range(3):
        (prediction,) = predict(denoiser, canvas)
        sure = (canvas == MASK_ID) & (prediction.confidence > 0.9)
        assert np.flatnonzero(sure).tolist() == [3 * step, 3 * step + 1, 3 * step + 2][: 8 - 3 * step]
        canvas = np.where(sure, prediction.argmax_ids, canvas)
    assert TOKENIZER.decode(canvas) == b"abcdefgh"


def test_matching_token_is_settled_under_uniform_noise():
    denoiser = ScriptedDenoiser("abcd", spec=UNIFORM_SPEC, tokens_per_step=2)
    denoiser.prefill(0, fim("", ""))
    canvas = np.full(4, 200, dtype=np.int32)
    canvas[3] = TOKENIZER.encode("d")[0]
    (prediction,) = predict(denoiser, canvas)
    assert (prediction.entropy < 0.2).tolist() == [True, True, False, True]


def test_steps_and_prefilled_tokens_are_counted():
    denoiser = ScriptedDenoiser("x")
    denoiser.prefill(0, fim("abc", ""))
    denoiser.prefill(0, fim("abc", "", "d"))
    assert denoiser.num_prefilled == 7
    predict(denoiser, masks(4))
    predict(denoiser, masks(4))
    assert denoiser.num_steps == 2
