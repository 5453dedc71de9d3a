"""Several gaps: on one canvas where the model takes frozen text around a gap, else one after the other."""

import time
from dataclasses import replace

import numpy as np
import pytest
from scripted import END_ID, MASK_SPEC, UNIFORM_SPEC, ByteTokenizer, ScriptedDenoiser, engine_for

from dg_lsp.canvas.spec import DecoderName, PromptCut, PromptFormat
from dg_lsp.context.document import Snapshot
from dg_lsp.context.gaps import find_gaps
from dg_lsp.diffusion.denoiser import Prediction
from dg_lsp.engine.engine import drain
from dg_lsp.engine.request import RewriteRequest
from dg_lsp.errors import RequestError
from dg_lsp.postprocess.validate import Reason

SOURCE = "def f(a):\n    x = ...\n    # TODO: log\n    pass\n    return g(, a)\n"
FILLED = "def f(a):\n    x = a * 2\n    print(x)\n    return g(x, a)\n"
INFILL_SPECS = [
    replace(spec, prompt_format=PromptFormat.INFILL, has_causal_head=False, canvas_lengths=(128,))
    for spec in (MASK_SPEC, UNIFORM_SPEC)
]


class GapsModel(ScriptedDenoiser):
    """Predicts its texts in the gaps of a canvas, which it finds by the frozen text; shorter gaps are less probable."""

    def __init__(self, spec, fills, known):
        super().__init__("", spec=spec)
        self._fills, self._known = fills, [self.tokenizer.encode(text).tolist() or [END_ID] for text in known]
        self.canvases = []

    def predict(self, slot, canvases, *options):
        self.canvases.append([canvas.tolist() for canvas in canvases])
        return super().predict(slot, canvases, *options)

    def _prediction(self, canvas, *_):
        ids, confidence, entropy = canvas.copy(), np.full(len(canvas), 0.5, np.float32), np.zeros(len(canvas))
        listed, ends = canvas.tolist(), [0]
        for known in self._known:
            at = next((i for i in range(ends[-1], len(listed)) if listed[i : i + len(known)] == known), None)
            if at is None:  # the text after the gaps is compared
                return Prediction(ids, ids, confidence, entropy, confidence)
            ends += [at, at + len(known)]
        for number, fill in enumerate(self._fills):
            start, end = ends[2 * number + 2], ends[2 * number + 3]
            wanted = [*self.tokenizer.encode(fill).tolist(), *[END_ID] * (end - start)][: end - start]
            ids[start:end] = wanted
            confidence[start:end] = 0.99 if end - start >= len(fill) else 0.92
        return Prediction(ids, ids, confidence, entropy, confidence)


def request(text=SOURCE, **options):
    snapshot = Snapshot("file:///a.py", text)
    return RewriteRequest(snapshot, 0, len(text), gaps=find_gaps(snapshot, 0, len(text)), **options)


def filled(denoiser, text=SOURCE, *, look=lambda _: None, settings=(), **options):
    """The result of a request; `look` is called with every step."""
    engine = engine_for(denoiser, early_stop_ms=0.0, **dict(settings))
    return drain(request(text, **options).run(engine, float("inf")), look)


def applied(result, text=SOURCE):
    return text[: result.start] + result.text + text[result.end :]


ANSWERS = replace(INFILL_SPECS[1], prompt_format=PromptFormat.INSTRUCT, template="gemma4", max_prompt_tokens=1024)


@pytest.mark.parametrize("spec", [*INFILL_SPECS, ANSWERS], ids=["masks", "uniform noise", "an answer"])
def test_all_gaps_settle_together_on_one_canvas(spec, monkeypatch):
    monkeypatch.setattr(ByteTokenizer, "special", lambda *_: 4)
    model = GapsModel(
        spec, ["a * 2", "print(x)", "x"], ["    x = ", "\n    # TODO: log\n    ", "\n    return g(", ", a)\n"]
    )
    frames = []
    result = filled(model, look=lambda step: frames.append(step.frame()))
    assert applied(result) == FILLED
    assert [gap.text for gap in result.gaps] == ["a * 2", "print(x)", "x"]
    assert result.steps == len(model.canvases) <= 6
    assert {frame.block for frame in frames} == {0}
    frozen = "".join(cell.text for cell in frames[-1].cells if cell.is_frozen)
    assert frozen == "\n    # TODO: log\n    \n    return g("


def test_gaps_that_do_not_fit_into_one_canvas_share_several():
    spec = replace(INFILL_SPECS[0], canvas_lengths=(64,))
    model = GapsModel(spec, ["1"], ["q"])
    filled(model, "a = ...\nb = ...\nc = '" + 60 * "x" + "'\nd = ...\ne = ...\n")
    assert max(len(canvas) for canvases in model.canvases for canvas in canvases) <= 64
    assert max(sum(map(len, canvases)) for canvases in model.canvases) <= 256, "more than a runtime takes in a pass"


def test_the_joint_canvas_can_be_requested():
    fills, known = ["a * 2", "print(x)", "x"], ["", "\n    # TODO: log\n    ", "\n    return g(", ""]
    fim = replace(MASK_SPEC.fim, cut=PromptCut.TOKEN)  # no causal pass spells what precedes the first gap
    model = GapsModel(replace(MASK_SPEC, canvas_lengths=(128,), fim=fim), fills, known)
    model._known[0] = []
    result = filled(model, decoder=DecoderName.INFILL)
    assert applied(result) == FILLED
    assert model.tokenizer.decode(model._slots[0][0]).endswith(b"def f(a):\n    x = ")


def test_a_model_whose_canvases_are_blocks_has_no_joint_canvas():
    sampling = replace(MASK_SPEC.sampling, block_length=8)
    spec = replace(MASK_SPEC, sampling=sampling, canvas_lengths=(8,), has_causal_head=False)
    with pytest.raises(RequestError, match="no canvas between frozen text"):
        filled(ScriptedDenoiser("a", spec=spec), decoder=DecoderName.INFILL)
    assert applied(filled(ScriptedDenoiser("a", spec=spec))).startswith("def f(a):\n    x = a\n")


@pytest.mark.parametrize(
    ("fill", "reason"),
    [
        ("1 +", Reason.SYNTAX_ERROR),
        ("...", Reason.UNCHANGED),
        ("", Reason.EMPTY),
        ("0111", Reason.SYNTAX_ERROR),  # of CPython: tree-sitter accepts it
        ("nothing.x", Reason.UNKNOWN_NAME),
    ],
)
def test_a_gap_without_a_good_fill_stays_as_it_was(fill, reason):
    source = "def f(a):\n    x = ...\n    y = g(...)\n    return x\n"
    result = filled(ScriptedDenoiser(lambda prefix, _: "a" if prefix.endswith("x = ") else fill), source)
    assert applied(result, source) == source.replace("...", "a", 1)
    assert [gap.reason for gap in result.gaps] == [None, reason]


BODY = "def f(a):\n    {}\n    return a\n"
BLOCK = "def f(a):\n    if a:\n        {}\n    return a\n"


@pytest.mark.parametrize(
    ("source", "placeholder", "fill", "kept"),
    [
        pytest.param("x = g({}, 1)\n", "", "[2, 3], 4)", "[2, 3]", id="an argument"),
        pytest.param("x = g({}, 1)\n", "", "lambda a={1: 2}, b=0: a, 4)", "lambda a={1: 2}, b=0: a", id="a function"),
        pytest.param("x = g({})\n", "...", "2, 3)[0]", "2, 3", id="the last arguments"),
        pytest.param(BODY, "pass", "a = 1\n    a = 2", "a = 1", id="a statement among others"),
        pytest.param(BLOCK, "pass", "a = 1\n        a = 2\n    else:", "a = 1\n        a = 2", id="a block"),
        pytest.param('def f(a):\n    """A."""\n    {}\n', "pass", "a = 1\n    a = 2", "a = 1\n    a = 2", id="a body"),
        pytest.param(BODY, "# TODO: set\n    pass", "a = 1\n    a = 2", "a = 1\n    a = 2", id="a description"),
    ],
)
def test_a_fill_ends_with_its_argument_its_line_or_its_block(source, placeholder, fill, kept):
    text = source.format(placeholder)
    assert applied(filled(ScriptedDenoiser(fill), text), text) == source.format(kept)


def test_a_body_is_filled_as_a_whole_or_not_at_all():
    statements = [f"x{number} = a + {number}" for number in range(60)]
    text = 'def f(a):\n    """Adds."""\n    ...\n\n\nx = f(1)\n'
    for number, reason in ((8, None), (60, Reason.UNFINISHED)):
        body = "\n    ".join(statements[:number])
        [gap] = filled(ScriptedDenoiser(body), text).gaps
        assert (gap.text, gap.reason) == ("" if reason else body, reason)


def test_a_fill_may_read_names_of_other_fills_and_those_that_were_unbound_before():
    source = "def f():\n    pass\n    print(injected, ...)\n    return ...\n"
    fills = {"    ": "x = 1", "    return ": "injected"}
    result = filled(ScriptedDenoiser(lambda prefix, _: fills.get(prefix.rpartition("\n")[2], "x")), source)
    assert applied(result, source) == "def f():\n    x = 1\n    print(injected, x)\n    return injected\n"


@pytest.mark.parametrize(
    ("source", "fill", "options", "reason"),
    [
        ("x = ...\n", "", {}, Reason.EMPTY),
        ("x = ...\n", "a", {"min_confidence": 1.0}, Reason.LOW_CONFIDENCE),
        ("a = 1\npass\n", "# later", {}, Reason.HOLLOW),
    ],
)
def test_without_any_good_fill_the_rewrite_is_rejected(source, fill, options, reason):
    result = filled(ScriptedDenoiser(fill), source, settings=options)
    assert (result.text, result.reason) == ("", reason)


@pytest.mark.parametrize("spec", [MASK_SPEC, INFILL_SPECS[0]], ids=["one after the other", "together"])
def test_gaps_are_unfinished_at_the_deadline(spec):
    engine = engine_for(ScriptedDenoiser("a", spec=spec))
    result = drain(engine.rewrite(request(), deadline=time.monotonic() - 1))
    assert {gap.reason for gap in result.gaps} == {Reason.UNFINISHED}
