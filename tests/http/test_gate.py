"""Who may come in, and how much they may bring."""

import json
import socket

import pytest
from http_server import Starter

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.errors import UsageError
from dg_lsp.http import fields
from dg_lsp.http.gate import Rules, allowed_hosts, host_name
from dg_lsp.http.listening import Address, Listening
from dg_lsp.settings import Settings

GAP = {"input_prefix": "a = "}
KEY = "key-é"
PAGE = "https://notebook.example"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8012", "[::1]:8012", "LOCALHOST", "localhost."])
def test_loopbacks_names_are_served(module_client, host):
    assert module_client.get("/health", Host=host).status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8012", "localhost.evil.example", "", "[::2]"])
def test_a_name_that_was_made_to_point_here_is_not(module_client, host):
    reply = module_client.get("/health", Host=host)
    assert (reply.status, reply.error["type"]) == (403, "permission_error")


def test_names_may_be_allowed(start):
    client = start(ScriptedDenoiser("x"), rules=Rules(hosts=allowed_hosts("127.0.0.1", ["Box.example"])))
    assert client.get("/health", Host="box.example:80").status == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:8012", "http://127.0.0.1"])
def test_pages_are_not_served(module_client, origin):
    reply = module_client.post("/infill", GAP, Origin=origin)
    assert reply.status == 403
    assert "access-control-allow-origin" not in reply.headers
    asked = module_client.send(
        "OPTIONS", "/infill", headers={"Origin": origin, "Access-Control-Request-Method": "POST"}
    )
    assert asked.status == 403


@pytest.fixture(scope="module")
def locked():
    """A server with a key, and a page that may ask it."""
    starter = Starter()
    yield starter(ScriptedDenoiser("x"), rules=Rules(api_key=KEY, origins=(PAGE,)))
    starter.stop()


def test_a_page_that_is_allowed_is_served(locked):
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    asked = locked.send("OPTIONS", "/infill", headers={"Origin": PAGE, **wanted})
    assert (asked.status, asked.headers["access-control-allow-origin"]) == (200, PAGE)
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
def test_a_server_with_a_key_asks_for_it(locked, headers):
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
def test_the_key_opens(locked, headers):
    assert locked.post("/infill", GAP, **headers, Host="any.example").status == 200


def test_other_machines_need_a_key():
    with pytest.raises(UsageError, match="DG_LSP_API_KEY"):
        Listening(Address("0.0.0.0", 0), lambda _: None, Settings(), Rules())


def test_a_port_that_is_taken_is_told():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="choose another"):
        Listening(Address("127.0.0.1", taken.getsockname()[1]), lambda _: None, Settings(), Rules())


def test_a_body_longer_than_allowed_is_not_read(start):
    client = start(ScriptedDenoiser("x"), http={"max_body_bytes": 2048})
    assert client.post("/infill", {"input_prefix": "a" * 1000}).status == 200
    long = json.dumps({"input_prefix": "a" * 2048}).encode()
    assert client.post("/infill", long).status == 413
    chunks = (long[at : at + 512] for at in range(0, len(long), 512))
    reply = client.send("POST", "/infill", chunks)  # without a length, in chunks
    assert (reply.status, reply.error["type"]) == (413, "invalid_request_error")


def test_a_body_that_does_not_come_is_not_waited_for(start, monkeypatch):
    monkeypatch.setattr(fields, "BODY_SECONDS", 0.05)
    client = start(ScriptedDenoiser("x"))
    with socket.create_connection(("127.0.0.1", client.port), timeout=30) as connection:
        connection.sendall(b"POST /infill HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
        assert connection.recv(65536).startswith(b"HTTP/1.1 408 ")


def test_more_requests_than_the_house_holds(start, gated):
    import time
    from concurrent.futures import ThreadPoolExecutor

    denoiser = gated("x")
    client = start(denoiser, rules=Rules(max_requests=1))
    with ThreadPoolExecutor() as pool:
        first = pool.submit(client.post, "/infill", GAP)
        assert denoiser.is_inside.wait(30)
        reply = client.get("/health")
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        denoiser.go_on.set()
        assert first.result(30).status == 200
    time.sleep(0)
    assert client.get("/health").status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b'{"input_prefix":NaN}',
        b'{"input_prefix":Infinity}',
        b"\xff\xfe",
        b'{"a":' * 100_000,
        b'{"seed":' + b"9" * 5000 + b"}",
        b"input_prefix=a",
    ],
    ids=lambda body: body[:12].decode("latin-1"),
)
def test_what_is_no_json_object_is_refused(module_client, body):
    reply = module_client.post("/infill", body)
    assert reply.status == 400
    assert "the request's body" in reply.error["message"]


def test_numbers_out_of_all_bounds_are_refused(module_client):
    for number in (b"1e999", b"9" * 400):
        reply = module_client.post("/infill", b'{"t_max_predict_ms":' + number + b"}")
        assert (reply.status, reply.error["param"]) == (400, "t_max_predict_ms")


def test_lone_surrogates_do_no_harm(module_client):
    body = rb'{"input_prefix":"\ud800 = ","input_suffix":"\udfff","stop":["\ud800"]}'
    assert module_client.post("/infill", body).status == 200
    tabby = rb'{"segments":{"prefix":"a","filepath":"\ud800"},"user":"\ud800"}'
    assert module_client.post("/v1/completions", tabby).status == 200


@pytest.mark.parametrize(("method", "path"), [("GET", "/infill"), ("PUT", "/v1/completions"), ("POST", "/health")])
def test_a_method_that_is_not_for_a_path(module_client, method, path):
    reply = module_client.send(method, path)
    assert (reply.status, reply.error["code"]) == (405, 405)
    assert "allow" in reply.headers


@pytest.mark.parametrize("path", ["/", "/infill/", "/v1", "/..%2f..%2fetc/passwd", "/v1/completions/x", "//health"])
def test_a_path_that_there_is_not(module_client, path):
    reply = module_client.get(path)
    assert (reply.status, reply.error["type"]) == (404, "not_found_error")
    assert "/infill" in reply.error["message"]


@pytest.mark.parametrize(
    ("host", "name"),
    [("A:80", "a"), ("[::1]:80", "::1"), ("[::1]", "::1"), ("a.", "a"), ("", ""), ("[", ""), (":", "")],
)
def test_host_names(host, name):
    assert host_name(host) == name
