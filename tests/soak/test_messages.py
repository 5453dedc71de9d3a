"""The first messages of the campaign of fuzzed messages."""

import math
import sys

import pytest

from soak import lsp_process, messages


@pytest.mark.timeout(900)
def test_no_message_ends_the_server_or_loses_an_edit_or_an_answer():
    figures = messages.run(seconds=math.inf, seed=0, most=8000)
    failures = [figures[key] for key in ("crashes", "lost", "crossed", "unexpected")]
    assert failures == [0, 0, 0, 0], figures
    assert figures["messages"] >= 8000
    assert figures["edits"] > 1000
    assert figures["compared"] > 100  # a newer request replaces more of them where the model thread is slow


def test_a_server_that_stops_answering_is_ended_and_shows_its_stacks(tmp_path, monkeypatch):
    class Client:
        def is_idle(self):
            return False

    monkeypatch.setattr(lsp_process, "PATIENCE", 1)
    script = "import time\ndef wait_for_ever():\n    time.sleep(1e6)\nwait_for_ever()"
    process = lsp_process.Process([sys.executable, "-c", script], tmp_path)
    process.connect()
    with process.limited():
        process.send(bytes(1_000_000))  # more than a pipe holds
        assert not process.deliver(Client())
    assert process.close() != 0
    assert "in wait_for_ever" in process.errors
