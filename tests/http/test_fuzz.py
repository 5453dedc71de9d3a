"""What schemathesis makes of the document, right and wrong: no request fails, no answer is unforeseen."""

import copy
import json

import jsonschema_rs
import pytest
import schemathesis
from chatty import chatty
from http_server import Starter
from hypothesis import HealthCheck, Phase, settings
from schemathesis import checks

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.http.openapi import POSTS, document

NUM_EXAMPLES = 30
FILLS = {"/infill", "/v1/fim/completions"}
"""Whatever fits the document gets its answer there; elsewhere a model or a template may want more."""
CHATS = {"/v1/chat/completions", "/v1/apply/completions"}


def closed(tree):
    """A schema that allows no field that it does not name."""
    if isinstance(tree, list):
        return [closed(one) for one in tree]
    if not isinstance(tree, dict):
        return tree
    shut = {name: closed(value) for name, value in tree.items()}
    if "properties" in shut and "required" in shut:
        shut.setdefault("additionalProperties", False)
    return shut


def strict():
    """The document, with nothing more in any answer than it says."""
    tree = copy.deepcopy(document())
    tree["components"]["schemas"] = closed(tree["components"]["schemas"])
    tree["components"]["schemas"]["Document"].pop("additionalProperties", None)
    return tree


TREE = strict()
SCHEMA = schemathesis.openapi.from_dict(TREE)
BOUNDED = settings(
    max_examples=NUM_EXAMPLES,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def base_urls():
    """Of a server whose model fills, and of one whose model talks."""
    starter = Starter()
    models = ScriptedDenoiser("total"), chatty("def f():\n    return 1\n")
    yield [f"http://127.0.0.1:{starter(model).port}" for model in models]
    starter.stop()


def check_kind(_context, response, _case):
    """No engine may fail, and only a model that cannot chat may say that it cannot."""
    assert response.status_code != 500
    if response.status_code >= 400:
        assert response.headers["content-type"] == ["application/json"]


def check_events(_context, response, case):
    """Each event is what the document says that a stream is made of."""
    if response.headers.get("content-type", [""])[0].startswith("text/event-stream"):
        schema = {**TREE["components"]["schemas"][POSTS[case.path].event], "components": TREE["components"]}
        *events, end = response.content.decode().split("\n\n")
        assert end == ""
        for data in (event.removeprefix("data: ") for event in events):
            if data != "[DONE]":
                jsonschema_rs.validate(schema, json.loads(data))


@SCHEMA.parametrize()
@BOUNDED
def test_what_the_document_says_is_what_the_server_does(case, base_urls):
    excluded = [checks.not_a_server_error]  # 501, 503 and 504 are answers
    if case.path not in FILLS:
        excluded.append(checks.positive_data_acceptance)
    case.call_and_validate(
        base_url=base_urls[case.path in CHATS],
        additional_checks=[check_kind, check_events],
        excluded_checks=excluded,
    )


def test_a_template_of_mercurys_is_among_what_is_asked():
    """Else no request for an edit would come further than to its marks."""
    content = TREE["paths"]["/v1/edit/completions"]["post"]["requestBody"]["content"]
    assert "<|cursor|>" in content["application/json"]["example"]["messages"][0]["content"]
