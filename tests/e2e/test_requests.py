"""Concurrent requests: the newest wins, cancelled ones stop, and every id is answered exactly once."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

PATIENT = {"completion": {"deadline_ms": 60_000}}
"""A busy machine must not turn a cancellation into a deadline."""
OTHER = "file:///project/other.py"


def test_automatic_requests_get_one_candidate_and_invoked_ones_three(start):
    client = start("three")
    client.handshake(options=PATIENT)
    client.open("\n")
    assert [item["insertText"] for item in client.items(client.complete(0, 0))] == ["first"]
    invoked = client.items(client.complete(0, 0, kind=client.INVOKED))
    assert sorted(item["insertText"] for item in invoked) == ["first", "second", "third"]


def test_nothing_to_show_is_an_empty_list(start):
    client = start("fill", DG_TEST_FILL=" ")
    client.handshake(options=PATIENT)
    client.open("x = 1\n")
    assert client.result(client.complete(0, 5)) == {"items": []}


def test_cancelling_stops_the_model_within_one_step(start, steps):
    client = start("slow")
    client.handshake(options=PATIENT)
    client.open("s\n")
    client.open("f\n", uri=OTHER)
    stale = client.complete(0, 1)
    client.wait_until(lambda: steps().count("s") >= 3)
    client.cancel(stale)
    assert client.answer(stale)["error"]["code"] == client.CANCELLED
    so_far = steps().count("s")
    assert len(client.items(client.complete(0, 1, uri=OTHER))) == 1
    assert so_far <= steps().count("s") <= so_far + 1
    assert steps().rstrip("f").count("s") < 30  # of 40
    assert client.leave() == 0
    client.check()


def test_the_newest_request_of_a_document_wins(start, steps):
    client = start("slow")
    client.handshake(options=PATIENT)
    client.open("s\n")
    stale = client.complete(0, 1)
    client.wait_until(lambda: steps().count("s") >= 3)
    client.change(2, {"text": "s\nf\n"})
    fresh = client.complete(1, 1)
    assert client.answer(stale)["error"]["code"] == client.CANCELLED
    assert len(client.items(fresh)) == 1
    assert steps().count("s") < 30  # of 40
    assert client.leave() == 0
    client.check()


def test_documents_do_not_cancel_each_other(start, steps):
    client = start("slow")
    client.handshake(options=PATIENT)
    client.open("s\n")
    client.open("f\n", uri=OTHER)
    first, second = client.complete(0, 1), client.complete(0, 1, uri=OTHER)
    assert len(client.items(first)) == len(client.items(second)) == 1


def test_each_request_uses_the_buffer_at_its_time(start):
    """Everything arrives in one write; edits between two requests affect only the second."""
    client = start("echo")
    client.handshake(options=PATIENT)
    client.open("")
    client.open("", uri=OTHER)
    sent, ids = b"", []
    for number, uri in enumerate([client.URI, OTHER]):
        whole = {"textDocument": {"uri": uri, "version": 2}, "contentChanges": [{"text": f"before {number}"}]}
        sent += client.encode(method="textDocument/didChange", params=whole)
        ids.append(f"piece{number}")
        sent += client.encode(
            id=ids[-1], method="textDocument/inlineCompletion", params=client.completion(0, 3, uri=uri)
        )
        whole = {"textDocument": {"uri": uri, "version": 3}, "contentChanges": [{"text": "after"}]}
        sent += client.encode(method="textDocument/didChange", params=whole)
    client.requested += ids
    client.send_bytes(sent)
    for number, msg_id in enumerate(ids):
        [item] = client.items(msg_id)
        assert json.loads(item["insertText"])["text"] == f"before {number}"
    assert client.leave() == 0
    client.check()


def test_cancellations_and_requests_in_one_write(start):
    client = start("slow")
    client.handshake(options=PATIENT)
    client.open("s\n")
    params = client.completion(0, 1)
    client.requested += [1, "two", 3]
    sent = client.encode(method="$/cancelRequest", params={"id": 1})  # before there is anything to cancel
    sent += client.encode(id=1, method="textDocument/inlineCompletion", params=params)
    sent += client.encode(id="two", method="textDocument/inlineCompletion", params=params)
    sent += client.encode(method="$/cancelRequest", params={"id": "two"})
    sent += client.encode(id=3, method="textDocument/inlineCompletion", params=params)
    sent += client.encode(method="$/cancelRequest", params={"id": "two"})
    client.send_bytes(sent)
    assert client.answer(1)["error"]["code"] == client.CANCELLED
    assert client.answer("two")["error"]["code"] == client.CANCELLED
    assert len(client.items(3)) == 1
    client.cancel(3)  # too late
    assert client.leave() == 0
    client.check()


def test_malformed_requests_are_answered_and_malformed_notifications_dropped(start):
    client = start("fill")
    client.handshake(options=PATIENT)
    client.open("secret_text\n")
    for wrong in ({"position": {"line": -1, "character": 0}}, {"position": None}, {"context": {"triggerKind": 9}}):
        msg_id = client.request("textDocument/inlineCompletion", client.completion(0, 0) | wrong)
        assert client.answer(msg_id)["error"]["code"] == -32602
    unknown = client.request("textDocument/unheardOf", {})
    assert client.answer(unknown)["error"]["code"] == -32601
    client.notify("textDocument/didChange", {"textDocument": {"uri": client.URI}, "contentChanges": "secret_text"})
    client.notify("$/whatever", {})
    assert len(client.items(client.complete(1, 0))) == 1
    assert client.leave() == 0
    client.check()
    assert client.stderr == ""
    assert "secret" not in json.dumps(client.told("window/logMessage"))


def test_invalid_bytes_between_messages_are_answered_with_errors(start):
    client = start("fill")
    client.handshake(options=PATIENT)
    client.send_bytes(b"X-Header: 1\r\n\r\n")
    client.send_bytes(b"content-length:5\r\nContent-Type: application/json\r\n\r\n{{{{{")
    client.send_bytes(b"Content-Length: 2\r\n\r\n[]")
    client.open("\n")
    assert len(client.items(client.complete(0, 0))) == 1
    assert [one["error"]["code"] for one in client.answers(None)] == [-32700, -32600]
    assert client.told("window/showMessage") == []


def burst(client, steps, version):
    """50 requests: a third is cancelled at once, a third is replaced, a third is replaced after a step.

    Returns the newest request's id and the version reached.
    """
    for number in range(50):
        version += 1
        end = {"line": 0, "character": number}
        client.change(version, {"range": {"start": end, "end": end}, "text": "s"})
        newest = client.complete(0, number + 1)
        if number % 3 == 0 and number < 49:
            client.cancel(newest)
        elif number % 3 == 1:
            before = len(steps())
            client.wait_until(lambda before=before: len(steps()) > before)
    return newest, version


def resident_kib(client):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{client.process.pid}/status").read_text())[1])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_bursts_of_stale_requests_do_not_leak_memory(start, steps):
    """Every id is answered once, stale ones with -32800; steps stop and memory does not grow."""
    client = start("slow")
    client.handshake(options=PATIENT)
    client.open("f\n", uri=OTHER)
    version, sizes, durations = 0, [], []
    for _ in range(6):
        client.open("", version=version)
        began, asked = os.times().elapsed, len(client.requested)
        newest, version = burst(client, steps, version)
        durations.append(os.times().elapsed - began)
        stale = [msg_id for msg_id in client.requested[asked:] if msg_id != newest]
        codes = [client.answer(msg_id).get("error", {}).get("code") for msg_id in stale]
        assert codes == [client.CANCELLED] * 49
        client.cancel(newest)
        client.answer(newest)
        so_far = steps().count("s")
        assert len(client.items(client.complete(0, 1, uri=OTHER))) == 1
        assert steps().count("s") <= so_far + 1
        sizes.append(resident_kib(client))
    print("burst seconds", durations, "resident KiB", sizes)
    # the first burst warms up; five more may cost 1 MiB, which is what the allocator may keep
    assert sizes[-1] - sizes[0] <= 1024
    assert client.leave() == 0
    client.check()
