"""Statuses, and what is said with them."""

import pytest

from dg_lsp.errors import (
    BackendError,
    ModelMemoryError,
    ModelNotFoundError,
    ModelUnsupportedError,
    RemoteError,
    RequestError,
)
from dg_lsp.http.refusal import Refusal, error_object, headers_of, loading, refusal_of


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestError("say less"), 400),
        (ModelUnsupportedError("ask for a chat"), 501),
        (ModelMemoryError("lower runtime.num_slots"), 503),
        (ModelNotFoundError("fetch it"), 503),
        (RemoteError("start it"), 503),
        (BackendError("lower gpu_layers"), 500),
    ],
)
def test_our_own_errors_speak_for_themselves(error, status):
    refusal = refusal_of(error)
    assert (refusal.status_code, refusal.detail) == (status, str(error))


def test_of_others_only_the_kind_is_named():
    assert refusal_of(ValueError("x = secret")).detail == "internal error: ValueError"


@pytest.mark.parametrize("status", [429, 503])
def test_who_may_come_again_is_told_when(status):
    assert Refusal(status, "x").headers == headers_of(status) == {"Retry-After": "1"}
    assert Refusal(status, "x", retry_after=7).headers == {"Retry-After": "7"}
    assert loading().headers == {"Retry-After": "1"}


@pytest.mark.parametrize("status", [400, 404, 405, 408, 413, 499, 500, 504])
def test_nobody_else_is(status):
    assert Refusal(status, "x").headers is None


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 408, 413, 414, 415, 429, 431, 499, 501, 503, 504])
def test_every_refusal_has_a_kind_of_its_own(status):
    assert error_object(status, "x")["error"]["type"] != "server_error"
