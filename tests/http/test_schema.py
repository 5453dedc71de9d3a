"""The OpenAPI document: schemathesis sends valid and invalid requests, and checks every response against it."""

import json

import pytest
import schemathesis
from chatty import chatty
from http_server import CHATS, OPENAI, check_errors, check_events
from hypothesis import HealthCheck, Phase, settings
from schemathesis import checks

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.http.app import create_app
from dg_lsp.http.auth import AccessRules
from dg_lsp.http.schemas import SamplerBody
from dg_lsp.http.service import Service
from dg_lsp.settings import Settings

NUM_EXAMPLES = 30
ALWAYS_ANSWERED = {"/infill", "/v1/fim/completions"}
"""Elsewhere a valid body may lack what a template or a model needs."""


class NoWorker:
    pass


DOCUMENT = create_app(Service(lambda _: NoWorker(), Settings(), print, AccessRules()), AccessRules()).openapi()
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


@SCHEMA.parametrize()
@BOUNDED
def test_the_server_follows_its_openapi_document(case, base_urls):
    excluded = [checks.not_a_server_error]  # 501, 503 and 504 are documented
    options = {*SamplerBody.model_fields} & set(case.body if isinstance(case.body, dict) else ())
    if case.path not in ALWAYS_ANSWERED or options:  # the model may lack an option
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
    assert posts == {*OPENAI, "/infill", "/completion", "/completions", "/v1/events", "/feedback"}
    gets = {path for path, methods in tree["paths"].items() if "get" in methods}
    both = {"/health", "/v1/health", "/models", "/v1/models"}
    assert gets == {*both, "/props", "/slots", "/memory", "/metrics"}
    assert (
        "above the cursor" in tree["components"]["schemas"]["InfillBody"]["properties"]["input_prefix"]["description"]
    )
    responses = DOCUMENT["paths"]["/v1/completions"]["post"]["responses"]
    assert {"200", "400", "401", "403", "413", "429", "499", "501", "503", "504"} <= set(responses)
    assert "Retry-After" in responses["503"]["headers"]
    assert "text/event-stream" in responses["200"]["content"]
    assert "422" not in responses
