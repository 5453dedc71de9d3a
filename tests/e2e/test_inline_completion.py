"""Inline completions: what is answered with nothing or from the cache, and the newest request wins.

`soak/messages.py` compares the text that each of many requests sees with the buffer at its time.
"""

from language_client import PATIENT

from dg_lsp.engine.audit import read_log

OTHER, SECRETS = "file:///project/other.py", "file:///project/.env.local"


def test_an_unlikely_completion_is_shown_only_on_request_one_of_a_secret_never_and_the_log_agrees(session, tmp_path):
    log = tmp_path / "audit.jsonl"
    completion, privacy = {**PATIENT["completion"], "min_confidence": 0.999}, {"audit_log": str(log)}
    options = {"env": {"DG_TEST_FILL": "total"}, "completion": completion, "privacy": privacy}
    client = session("fill", "x = \n", **options)
    assert client.texts(0, 4) == []
    assert client.texts(0, 4, kind=client.INVOKED) == ["total"]
    client.open("API_KEY=\n", uri=SECRETS, language="properties")
    for kind in (client.AUTOMATIC, client.INVOKED):
        assert client.texts(0, 8, uri=SECRETS, kind=kind) == []
    [logged] = client.logged(SECRETS)
    assert "secrets" in logged
    assert "API_KEY" not in logged
    client.wait_until(lambda: log.exists() and log.read_bytes().count(b"\n") == 3)
    records, *_ = read_log(log)
    outcomes = [(record.outcome, record.reason) for record in records]
    assert outcomes == [("nothing", "low-confidence"), ("shown", ""), ("ineligible", "excluded")]


def test_with_a_manual_trigger_only_what_was_requested_is_completed(session):
    client = session("fill", "x = \n", env={"DG_TEST_FILL": "total"}, completion={"trigger": "manual"})
    assert client.texts(0, 4) == []
    client.type(2, 0, 4, "t")
    assert client.texts(0, 5) == []
    client.type(3, 0, 5, "\n")
    client.type(4, 1, 0, "y = ")
    assert client.texts(1, 4, kind=client.INVOKED) == ["total"]
    client.type(5, 1, 4, "to")
    assert client.texts(1, 6) == ["tal"]
    client.type(6, 1, 6, "y")
    assert client.texts(1, 7) == []


def test_single_lines_on_request(session):
    fill = {"DG_TEST_FILL": "a = 1\n    b = 2\n    return a"}
    text = "def f():\n    \n    x = 1\n"
    for lines, num, opened in (("auto", 3, 1), ("single", 1, 0)):
        client = session("fill", text, env=fill, completion={**PATIENT["completion"], "lines": lines})
        for kind in (client.AUTOMATIC, client.INVOKED):
            [shown] = client.texts(1, 4, kind=kind)
            assert shown.count("\n") + 1 == num
        client.open("def f():\n", uri=OTHER)
        assert len(client.texts(0, 8, uri=OTHER)) == opened


def test_an_automatic_completion_waits_until_no_key_was_typed_for_the_debounce(session):
    client = session("slow", "f\n", completion={**PATIENT["completion"], "debounce_ms": 3_600_000})
    cancelled = client.complete(0, 1)
    client.cancel(cancelled)
    assert client.is_cancelled(cancelled)
    changed = client.complete(0, 1)
    client.type(2, 0, 1, "a")
    replaced = client.complete(0, 2)
    assert client.texts(0, 2, kind=client.INVOKED) == ["ast"]
    client.open("f\n", uri=OTHER)
    closed = client.complete(0, 1, uri=OTHER)
    client.close_document(OTHER)
    for stale in (changed, replaced, closed):  # at once, not after the hour
        assert client.is_cancelled(stale)
    client = session("slow", "f\n", completion={**PATIENT["completion"], "debounce_ms": 1000})
    stale = client.complete(0, 1)
    client.type(2, 0, 1, "a")
    assert client.texts(0, 2) == ["ast"]
    assert client.is_cancelled(stale)


def test_automatic_requests_get_one_candidate_and_invoked_ones_three_without_a_status_bar(session):
    client = session("three")
    assert client.texts(0, 0) == ["first"]
    assert sorted(client.texts(0, 0, kind=client.INVOKED)) == ["first", "second", "third"]
    assert client.received("didChangeStatus") == []


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
