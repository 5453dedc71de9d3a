"""Invented attributes give way to known ones."""

from dataclasses import replace

import pytest

from dg_lsp.backends.scripted import MASK_SPEC
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.corrections import MAX_MATCH
from dg_lsp.engine.request import FillRequest

SMALL = replace(MASK_SPEC, repetition_match=2 * MAX_MATCH)
"""A model that the buffer corrects; no text here is repeated that long."""
CLASS = "class Host:\n    def greet(self):\n        pass\n\n    def run(self):\n        "
every_decoder = pytest.mark.parametrize(
    "decoder", [DecoderName.DIFFUSION, DecoderName.AUTOREGRESSIVE, DecoderName.PROMPT_LOOKUP, DecoderName.SPECULATIVE]
)


@pytest.fixture
def filled(engine_of):
    """The fill of a model that writes `script` after `before`."""

    def fill(before, script, spec=SMALL, language="python", **more):
        engine, _ = engine_of(script, spec=spec, tokens_per_step=1)
        snapshot = Snapshot("file:///a", 1, before + "\n", language)
        return engine.fill(FillRequest(snapshot, len(before), max_lines=1, **more))

    return fill


@every_decoder
def test_attribute_of_the_class_is_completed_instead_of_an_invented_one(filled, decoder):
    assert filled(CLASS, "self.hello", decoder=decoder).text == "self.greet"
    assert filled(f"{CLASS}self.", "hello", decoder=decoder).text == "greet"
    assert filled(f"{CLASS}self.gr", "ant", decoder=decoder).text == "eet"


@every_decoder
def test_known_attribute_stays_as_the_model_writes_it(filled, decoder):
    assert filled(f"{CLASS}return ", "self.greet(1)", decoder=decoder).text == "self.greet(1)"


@every_decoder
def test_attribute_of_an_unknown_object_stays(filled, decoder):
    assert filled(f"{CLASS}return ", "other.hello", decoder=decoder).text == "other.hello"


def test_language_without_a_grammar_is_not_corrected(filled):
    assert filled(CLASS, "self.hello", language="plaintext").text == "self.hello"


def test_model_that_needs_no_help_is_not_corrected(filled):
    assert filled(CLASS, "self.hello", MASK_SPEC).text == "self.hello"


def test_chosen_name_is_less_probable_than_one_that_the_model_is_sure_of(filled):
    known = "class A:\n    def f(self):\n        self.left, self.right, self.{}"
    sure, chosen = (filled(known.format(""), script).candidates[0].confidence for script in ("left", "west"))
    assert 0 < chosen < 0.8 < sure
