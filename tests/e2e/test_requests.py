"""Concurrent requests: the newest wins, cancelled ones stop, and every id is answered exactly once.

`soak/messages.py` compares the text that each of many requests sees with the buffer at its time.
"""

OTHER = "file:///project/other.py"


def test_automatic_requests_get_one_candidate_and_invoked_ones_three(session):
    client = session("three")
    assert client.texts(0, 0) == ["first"]
    assert sorted(client.texts(0, 0, kind=client.INVOKED)) == ["first", "second", "third"]


def test_cancelling_stops_the_model_within_one_step(session, steps):
    client = session("slow", "s\n")
    client.open("f\n", uri=OTHER)
    stale = client.complete(0, 1)
    client.wait_until(lambda: steps().count("s") >= 3)
    client.cancel(stale)
    assert client.is_cancelled(stale)
    so_far = steps().count("s")
    assert len(client.texts(0, 1, uri=OTHER)) == 1
    assert so_far <= steps().count("s") <= so_far + 1


def test_the_newest_request_of_a_document_wins(session, steps):
    client = session("slow", "s\n")
    stale = client.complete(0, 1)
    client.wait_until(lambda: steps().count("s") >= 3)
    client.change(2, {"text": "s\nf\n"})
    fresh = client.complete(1, 1)
    assert client.is_cancelled(stale)
    assert len(client.items(fresh)) == 1
    assert steps().count("s") < 64
