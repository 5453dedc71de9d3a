"""API key, allowed hosts and allowed origins."""

import pytest
from http_server import Starter

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.http.auth import AccessRules, allowed_hosts

GAP = {"input_prefix": "a = "}
KEY = "key-é"
PAGE = "https://notebook.example"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8012", "[::1]:8012", "LOCALHOST", "localhost."])
def test_names_of_loopback_are_allowed_hosts(module_client, host):
    assert module_client.get("/health", Host=host).status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8012", "localhost.evil.example", "", "[::2]"])
def test_other_hosts_are_refused(module_client, host):
    reply = module_client.get("/health", Host=host)
    assert (reply.status, reply.error["type"]) == (403, "permission_error")


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
def locked():
    """A server with a key and an allowed origin."""
    starter = Starter()
    yield starter(ScriptedDenoiser("x"), rules=AccessRules(api_key=KEY, origins=(PAGE,)))
    starter.stop()


def test_the_user_can_allow_an_origin(locked):
    headers = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    preflight = locked.send("OPTIONS", "/infill", headers={"Origin": PAGE, **headers})
    assert (preflight.status, preflight.headers["access-control-allow-origin"]) == (200, PAGE)
    key = {"Authorization": f"Bearer {KEY}".encode()}
    reply = locked.post("/infill", GAP, Origin=PAGE, **key)
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, PAGE)
    assert locked.post("/infill", GAP, Origin="https://evil.example", **key).status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer other"},
        {"Authorization": f"Basic {KEY}".encode()},
        {"X-Api-Key": ""},
        {"X-Api-Key": KEY.encode()[:-1]},
    ],
)
def test_a_wrong_key_is_refused(locked, headers):
    for reply in (locked.post("/infill", GAP, **headers), locked.get("/v1/models", **headers), locked.get("/nowhere")):
        assert (reply.status, reply.error["type"]) == (401, "authentication_error")
        assert reply.headers["www-authenticate"] == "Bearer"
    assert locked.get("/health", **headers).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {KEY}".encode()},
        {"authorization": f"bearer  {KEY}".encode()},
        {"X-Api-Key": KEY.encode()},
    ],
)
def test_the_right_key_is_accepted(locked, headers):
    assert locked.post("/infill", GAP, **headers, Host="any.example").status == 200


def test_without_a_required_key_any_key_is_ignored(module_client):
    for header in ("Bearer k", "Bearer ", "Bearer"):
        assert module_client.post("/infill", GAP, Authorization=header).status == 200
