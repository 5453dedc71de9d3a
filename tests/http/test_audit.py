"""The audit log: one line per request, without text."""

import pytest
from http_server import GAP, OPERATOR, UNHURRIED, metric, wait_until

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.engine.audit import parse_line
from dg_lsp.http.auth import AccessRules


def records(path, num):
    wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= num)
    return [parse_line(line) for line in path.read_bytes().splitlines()]


def test_refused_requests_are_logged_with_their_status(start, gated, occupy, tmp_path):
    path = tmp_path / "audit.jsonl"
    denoiser = gated("total")
    client = start(denoiser, rules=AccessRules(max_queued=1), privacy={"audit_log": str(path)})
    with occupy(denoiser, client):
        assert client.post("/infill", {**GAP, "language": "go"}).status == 503
        [record] = records(path, 1)
    assert (record.endpoint, record.outcome, record.reason) == ("/infill", "refused", "503")
    assert (record.task, record.language, record.steps) == ("line-end", "go", 0)


@pytest.mark.parametrize("num_texts", [1, 2], ids=["typed", "requested"])
def test_the_client_the_log_and_the_metrics_agree_on_an_unlikely_completion(start, tmp_path, num_texts):
    path, is_shown = tmp_path / "audit.jsonl", num_texts > 1
    completion = {**UNHURRIED["completion"], "min_confidence": 0.999}
    options = {"privacy": {"audit_log": str(path)}, "completion": completion}
    client = start(ScriptedDenoiser("total"), rules=OPERATOR, **options)
    body = client.post("/infill", {**GAP, "n_cmpl": num_texts}).body
    [record] = records(path, 1)
    counted = 'dg_lsp_completions_total{decoder="diffusion",shown="%s"}' % ("yes" if is_shown else "no")
    assert (b'"content":"total"' in body) is is_shown
    assert (record.outcome, record.reason) == (("shown", "") if is_shown else ("nothing", "low-confidence"))
    assert metric(client, counted) == 1
