"""The OpenAPI document: schemathesis sends valid and invalid requests of it, and checks every response."""

import json

import pytest
import schemathesis
from chatty import chatty
from hypothesis import HealthCheck, Phase, settings
from schemathesis import checks
from scripted import ScriptedDenoiser

from dg_lsp.http.app import create_app
from dg_lsp.http.auth import AccessRules
from dg_lsp.http.schemas import SAMPLER_FIELDS
from dg_lsp.http.service import Service
from dg_lsp.settings import SAMPLER_BOUNDS, Settings

CHATS = {"/v1/chat/completions", "/v1/apply/completions"}
ALWAYS_ANSWERED = {"/infill", "/v1/fim/completions"}
"""Elsewhere a valid body may lack what a template or a model needs."""
OPTIONS = {*SAMPLER_BOUNDS, *SAMPLER_FIELDS.values(), "chat_template_kwargs", "ignore_eos"}
"""Fields that a model may refuse."""
DOCUMENT = create_app(Service(lambda _: object(), Settings(), print, AccessRules())).openapi()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT).exclude(path=["/completions", "/models", "/health"])
"""Without second names of endpoints."""
BOUNDED = settings(
    max_examples=20,
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


@SCHEMA.parametrize()
@BOUNDED
def test_the_server_follows_its_openapi_document(case, base_urls):
    excluded = [checks.not_a_server_error]  # 501, 503 and 504 are documented
    options = OPTIONS & set(case.body if isinstance(case.body, dict) else ())
    if case.path not in ALWAYS_ANSWERED or options:
        excluded.append(checks.positive_data_acceptance)
    case.call_and_validate(
        base_url=base_urls[case.path in CHATS],
        additional_checks=[check_errors],
        excluded_checks=excluded,
    )


def test_the_document_is_served_and_describes_fields_and_streams(module_client):
    tree = module_client.get("/openapi.json").tree
    assert tree == json.loads(json.dumps(DOCUMENT))
    assert tree["openapi"].startswith("3.1")
    fields = tree["components"]["schemas"]["NativeBody"]["properties"]
    assert "above the cursor" in fields["input_prefix"]["description"]
    responses = tree["paths"]["/v1/completions"]["post"]["responses"]
    assert set(responses) == {"200", "default"}
    assert "text/event-stream" in responses["200"]["content"]
