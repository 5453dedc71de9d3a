"""The first messages of the campaign of fuzzed messages."""

import math

import pytest

from soak import messages


@pytest.mark.timeout(900)
def test_no_message_ends_the_server_or_loses_an_edit_or_an_answer():
    figures = messages.run(seconds=math.inf, seed=0, most=8000)
    failures = [figures[key] for key in ("crashes", "lost", "crossed", "unexpected")]
    assert failures == [0, 0, 0, 0], figures
    assert figures["messages"] >= 8000
    assert figures["edits"] > 1000
    assert figures["compared"] > 100  # a newer request replaces more of them where the model thread is slow
