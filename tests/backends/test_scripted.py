"""The scripted model: what a script may be, and what tests can observe."""

import numpy as np
import pytest

from dg_lsp.backends import scripted
from dg_lsp.backends.scripted import (
    END_ID,
    MASK_ID,
    MIDDLE_ID,
    PREFIX_ID,
    SUFFIX_ID,
    UNIFORM_SPEC,
    VOCAB_SIZE,
    ByteTokenizer,
    ScriptedDenoiser,
)
from dg_lsp.canvas.layout import token_ids

TOKENIZER = ByteTokenizer()


def fim(prefix, suffix, middle=""):
    parts = [[SUFFIX_ID], TOKENIZER.encode(suffix), [PREFIX_ID], TOKENIZER.encode(prefix), [MIDDLE_ID]]
    return np.concatenate([*parts, TOKENIZER.encode(middle)]).astype(np.int32)


def masks(length):
    return np.full(length, MASK_ID, dtype=np.int32)


def predict(denoiser, *canvases):
    return denoiser.predict(0, list(canvases), 0.0, np.random.default_rng(0))


def texts(denoiser, num_canvases=1):
    return [TOKENIZER.decode(each.argmax_ids).decode() for each in predict(denoiser, *[masks(8)] * num_canvases)]


def test_text_is_replayed_and_ended():
    denoiser = ScriptedDenoiser("x = 1")
    denoiser.prefill(0, fim("", ""))
    assert texts(denoiser) == ["x = 1"]
    assert (predict(denoiser, masks(8))[0].argmax_ids[5:] == END_ID).all()


def test_function_receives_prefix_and_suffix():
    seen = []
    denoiser = ScriptedDenoiser(lambda prefix, suffix: seen.append((prefix, suffix)) or prefix[-1] + suffix[0])
    denoiser.prefill(0, fim("ä1", "😋2"))
    assert texts(denoiser) == ["1😋"]
    assert seen == [("ä1", "😋2")]


def test_each_canvas_may_have_its_own_text():
    denoiser = ScriptedDenoiser(["one", "two"])
    denoiser.prefill(0, fim("", ""))
    assert texts(denoiser, 3) == ["one", "two", "two"]


def test_prompt_that_continues_the_script_gets_the_rest():
    denoiser = ScriptedDenoiser("hello world")
    denoiser.prefill(0, fim("p", "s", "hello "))
    assert texts(denoiser) == ["world"]
    denoiser.prefill(0, fim("p", "s", "other"))
    assert texts(denoiser) == [""]


def test_extension_follows_the_script_and_ends_where_it_is_left():
    denoiser = ScriptedDenoiser("return 1\n")
    after, other = TOKENIZER.encode("return 1\n"), TOKENIZER.encode("retour")
    denoiser.prefill(0, token_ids([MIDDLE_ID]))
    assert denoiser.extend(0, after).argmax_ids.tolist() == [*after[1:].tolist(), END_ID]
    denoiser.prefill(0, token_ids([MIDDLE_ID]))
    assert denoiser.extend(0, other).argmax_ids.tolist() == [*after[1:4].tolist(), *[END_ID] * 3]


def test_tokens_per_step_are_confident():
    denoiser = ScriptedDenoiser("abcdefgh", tokens_per_step=3)
    denoiser.prefill(0, fim("", ""))
    canvas = masks(8)
    for step in range(3):
        (prediction,) = predict(denoiser, canvas)
        sure = (canvas == MASK_ID) & (prediction.confidence > 0.9)
        assert np.flatnonzero(sure).tolist() == [3 * step, 3 * step + 1, 3 * step + 2][: 8 - 3 * step]
        canvas = np.where(sure, prediction.argmax_ids, canvas)
    assert TOKENIZER.decode(canvas) == b"abcdefgh"


def test_uniform_noise_settles():
    denoiser = ScriptedDenoiser("abcd", spec=UNIFORM_SPEC, tokens_per_step=2)
    denoiser.prefill(0, fim("", ""))
    canvas = np.full(4, 200, dtype=np.int32)
    canvas[3] = TOKENIZER.encode("d")[0]
    (prediction,) = predict(denoiser, canvas)
    assert (prediction.entropy < 0.2).tolist() == [True, True, False, True]


def test_steps_and_prefilled_tokens_are_counted(monkeypatch):
    slept = []
    monkeypatch.setattr(scripted.time, "sleep", slept.append)
    denoiser = ScriptedDenoiser("x", step_seconds=0.5)
    denoiser.prefill(0, fim("abc", ""))
    denoiser.prefill(0, fim("abc", "", "d"))
    assert denoiser.num_prefilled == 7
    predict(denoiser, masks(4))
    predict(denoiser, masks(4))
    assert (denoiser.num_steps, slept) == (2, [0.5, 0.5])


@pytest.mark.parametrize("written", ["", "def f():\n\treturn 'é😋'\r\n", "\0\x7f", "<|mask|>"])
def test_tokenizer_returns_the_same_text(written):
    ids = TOKENIZER.encode(written)
    assert ids.max(initial=5) < VOCAB_SIZE
    assert TOKENIZER.decode(np.array([MASK_ID, *ids, END_ID])).decode() == written


def test_special_tokens_have_spellings():
    found = [TOKENIZER.special(f"<{name}>") for name in ("mask", "end", "middle", "no")]
    assert found == [MASK_ID, END_ID, MIDDLE_ID, None]
