"""The OpenAPI document: schemathesis sends valid and invalid requests, and checks every response against it."""

import json

import pytest
import schemathesis
from chatty import chatty
from hypothesis import HealthCheck, Phase, settings
from schemathesis import checks

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.http.app import create_app
from dg_lsp.http.auth import AccessRules
from dg_lsp.http.schemas import OpenAiResponse
from dg_lsp.http.service import Service
from dg_lsp.settings import Settings

NUM_EXAMPLES = 30
ALWAYS_ANSWERED = {"/infill", "/v1/fim/completions"}
"""Elsewhere a valid body may lack what a template or a model needs."""
CHATS = {"/v1/chat/completions", "/v1/apply/completions"}
OPENAI = {"/v1/completions", "/v1/fim/completions", "/v1/edit/completions", *CHATS}


class NoWorker:
    pass


DOCUMENT = create_app(Service(lambda _: NoWorker(), Settings(), print), AccessRules()).openapi()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
BOUNDED = settings(
    max_examples=NUM_EXAMPLES,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def base_urls(module_start):
    """Servers of a model that completes and of one that chats."""
    models = ScriptedDenoiser("total"), chatty("def f():\n    return 1\n")
    return [f"http://127.0.0.1:{module_start(model).port}" for model in models]


def check_errors(_context, response, _case):
    assert response.status_code != 500
    if response.status_code >= 400:
        assert response.headers["content-type"] == ["application/json"]
        assert list(json.loads(response.content)) == ["error"]


def check_events(_context, response, case):
    if response.headers.get("content-type", [""])[0].startswith("text/event-stream"):
        *events, end = response.content.decode().split("\n\n")
        assert end == ""
        for data in (event.removeprefix("data: ") for event in events):
            if data != "[DONE]" and case.path in OPENAI:
                OpenAiResponse.model_validate_json(data)


@SCHEMA.parametrize()
@BOUNDED
def test_the_server_follows_its_openapi_document(case, base_urls):
    excluded = [checks.not_a_server_error]  # 501, 503 and 504 are documented
    if case.path not in ALWAYS_ANSWERED:
        excluded.append(checks.positive_data_acceptance)
    case.call_and_validate(
        base_url=base_urls[case.path in CHATS],
        additional_checks=[check_errors, check_events],
        excluded_checks=excluded,
    )


def test_the_document_is_served_and_has_all_paths(module_client):
    tree = module_client.get("/openapi.json").tree
    assert tree == json.loads(json.dumps(DOCUMENT))
    assert tree["openapi"].startswith("3.1")
    posts = {path for path, methods in tree["paths"].items() if "post" in methods}
    assert posts == {*OPENAI, "/infill", "/v1/events", "/feedback"}
    gets = {path for path, methods in tree["paths"].items() if "get" in methods}
    assert gets == {"/health", "/v1/models", "/props", "/slots", "/memory", "/metrics"}
    assert (
        "above the cursor" in tree["components"]["schemas"]["InfillBody"]["properties"]["input_prefix"]["description"]
    )
    responses = DOCUMENT["paths"]["/v1/completions"]["post"]["responses"]
    assert {"200", "400", "401", "403", "413", "429", "499", "501", "503", "504"} <= set(responses)
    assert "Retry-After" in responses["503"]["headers"]
    assert "text/event-stream" in responses["200"]["content"]
    assert "422" not in responses
