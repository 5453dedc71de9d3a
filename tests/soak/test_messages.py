"""The first messages of the campaign of fuzzed messages."""

from soak import messages


def test_no_message_ends_the_server_or_loses_an_edit_or_an_answer():
    figures = messages.run(seconds=600, seed=0, most=8000)
    failures = [figures[key] for key in ("crashes", "lost", "crossed", "unexpected")]
    assert failures == [0, 0, 0, 0], figures
    assert figures["messages"] >= 8000
    assert figures["edits"] > 1000
    assert figures["compared"] > 200
