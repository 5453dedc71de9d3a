"""API key, allowed hosts and allowed origins."""

import pytest
from http_server import GAP
from scripted import ScriptedDenoiser

from dg_lsp.http.auth import AccessRules, allowed_hosts

KEY = "key-é"
PAGE = "https://notebook.example"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("localhost", "127.0.0.1:8012", "[::1]:8012", "LOCALHOST", "localhost.")),
        *((host, 403) for host in ("evil.example:8012", "localhost.evil.example", "", "[::2]", "[", ":")),
        *((host, 403) for host in ("[::1].evil.example", "[::1]evil", "localhost:80.evil.example", "::1")),
    ],
)
def test_only_names_of_loopback_are_allowed_hosts(module_client, host, status):
    assert module_client.get("/health", Host=host).status == status


def test_the_user_can_allow_a_host(start):
    client = start(ScriptedDenoiser("x"), rules=AccessRules(hosts=allowed_hosts("127.0.0.1", ["Box.example"])))
    assert client.get("/health", Host="box.example:80").status == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:8012", "http://127.0.0.1"])
def test_web_pages_are_refused(module_client, origin):
    reply = module_client.post("/infill", GAP, Origin=origin)
    assert reply.status == 403
    assert "access-control-allow-origin" not in reply.headers
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    assert module_client.send("OPTIONS", "/infill", headers=headers).status == 403


@pytest.fixture(scope="module")
def locked(module_start):
    """A server with a key and an allowed origin."""
    return module_start(ScriptedDenoiser("x"), rules=AccessRules({"one": KEY}, origins=(PAGE,)))


def test_the_user_can_allow_an_origin(locked):
    headers = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    preflight = locked.send("OPTIONS", "/infill", headers={"Origin": PAGE, **headers})
    assert (preflight.status, preflight.headers["access-control-allow-origin"]) == (200, PAGE)
    key = {"Authorization": f"Bearer {KEY}".encode()}
    reply = locked.post("/infill", GAP, Origin=PAGE, **key)
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, PAGE)
    assert locked.post("/infill", GAP, Origin="https://evil.example", **key).status == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "Bearer other"}, 401),
        ({"Authorization": f"Basic {KEY}".encode()}, 401),
        ({"X-Api-Key": ""}, 401),
        ({"X-Api-Key": KEY.encode()[:-1]}, 401),
        ({"Authorization": f"Bearer {KEY}".encode()}, 200),
        ({"authorization": f"bearer  {KEY}".encode()}, 200),
        ({"X-Api-Key": KEY.encode()}, 200),
    ],
)
def test_every_request_but_that_for_health_requires_the_key(locked, headers, status):
    for reply in (locked.post("/infill", GAP, **headers, Host="any.example"), locked.get("/v1/models", **headers)):
        assert reply.status == status
        if status == 401:
            assert (reply.error["type"], reply.headers["www-authenticate"]) == ("authentication_error", "Bearer")
    assert locked.get("/health", **headers).status == 200
