"""Whether a model is used for a document and at a cursor, and the sentence with the reason against it."""

import pytest

from dg_lsp.context.document import Snapshot
from dg_lsp.context.eligibility import Cause, Eligibility
from dg_lsp.context.exclusion import Exclusion
from dg_lsp.settings import PrivacySettings

UNKNOWN = "m knows Python only; choose another model: dg-lsp setup"


def snapshot(text, name="a.py"):
    return Snapshot(f"file:///p/{name}", text, "python")


@pytest.mark.parametrize(
    ("before", "after", "trigger", "sentence"),
    [
        pytest.param("x = ", "", "auto", None, id="served"),
        pytest.param("x = ", "", "manual", "Completions come only on request (completion.trigger is", id="manual"),
        pytest.param("val", "ue_of = other_value", "auto", "The cursor is inside a word", id="inside a word"),
    ],
)
def test_an_automatic_completion_is_computed_only_where_it_is_of_use(before, after, trigger, sentence):
    document = snapshot(before + after)
    eligibility = Eligibility().while_typing(document, len(before), trigger)
    assert eligibility.is_served is (sentence is None)
    assert sentence is None or eligibility.sentence.startswith(sentence)


@pytest.mark.parametrize(
    ("name", "problem", "cause", "sentence"),
    [
        pytest.param("a.py", "", None, "", id="served"),
        pytest.param(
            ".env",
            UNKNOWN,
            Cause.EXCLUDED,
            "This file is not sent to the model: files of this kind usually contain secrets.",
            id="excluded",
        ),
        pytest.param("a.py", UNKNOWN, Cause.UNSUPPORTED, f"{UNKNOWN}.", id="language"),
    ],
)
def test_a_document_is_served_unless_it_is_excluded_or_in_an_unknown_language(name, problem, cause, sentence):
    exclusion, document = Exclusion(PrivacySettings()), snapshot("x = ", name)
    eligibility = Eligibility.of_document(document, exclusion, problem)
    assert (eligibility.cause, eligibility.sentence) == (cause, sentence)
    assert eligibility.while_typing(document, 4, "auto") == eligibility
