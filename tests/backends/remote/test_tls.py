"""Servers that speak TLS, with certificates good and bad; the key goes to none that is not trusted."""

import time

import pytest
from lying_server import CERTIFICATES, events, silent

from dg_lsp.context.asking import Asking, Task
from dg_lsp.context.window import Prompt
from dg_lsp.errors import RemoteError, SettingsError

ASKING = Asking(Task.FILL, Prompt("x = ", "\n"), 64)
GOOD = events('{"choices":[{"text":"y","finish_reason":"stop"}]}', "[DONE]")
TRUSTED = str(CERTIFICATES / "localhost.pem")


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("DG_LSP_REMOTE_KEY", "sk-sesame-4711")


def ask(model, seconds=30.0):
    return list(model.ask(ASKING, time.monotonic() + seconds))[-1]


@pytest.mark.parametrize("settings", [{"ca_file": TRUSTED}, {"verify_tls": False}], ids=["trusted", "unchecked"])
def test_a_server_that_is_trusted_is_asked(lie, model_of, settings):
    server = lie(GOOD, tls="localhost.pem")
    assert ask(model_of(server.url, **settings)).texts == ("y",)
    assert b"bearer sk-sesame-4711" in server.requests[0].lower()


@pytest.mark.parametrize(
    ("certificate", "host", "settings", "complaint"),
    [
        pytest.param("localhost.pem", "localhost", {}, r"is not trusted; set remote\.ca_file", id="nobody's"),
        pytest.param("localhost.pem", "127.0.0.1", {"ca_file": TRUSTED}, "is another host's", id="another's"),
        pytest.param(
            "expired.pem", "localhost", {"ca_file": str(CERTIFICATES / "expired.pem")}, "has expired", id="expired"
        ),
    ],
)
def test_a_server_that_is_not_trusted_gets_nothing(lie, model_of, certificate, host, settings, complaint):
    server = lie(GOOD, tls=certificate)
    with pytest.raises(RemoteError, match=complaint):
        ask(model_of(f"https://{host}:{server.port}", retries=3, **settings))
    assert server.requests == []


def test_no_tls_where_tls_is_wanted(lie, model_of):
    server = lie(GOOD)
    with pytest.raises(RemoteError, match="does not speak TLS as we do"):
        ask(model_of(f"https://localhost:{server.port}", ca_file=TRUSTED))


def test_tls_where_none_is_wanted(lie, model_of):
    server = lie(GOOD, tls="localhost.pem")
    with pytest.raises(RemoteError, match="the connection broke"):
        ask(model_of(f"http://localhost:{server.port}"))
    assert server.requests == []


def test_hanging_up_does_not_wait_for_a_farewell(lie, model_of):
    server = lie(silent, tls="localhost.pem")
    answers = model_of(server.url, ca_file=TRUSTED).ask(ASKING, time.monotonic() + 30)
    while not server.requests:
        next(answers)
    answers.close()
    assert server.left.wait(30)


@pytest.mark.parametrize("name", ["gone.pem", "lying_server.py"])
def test_certificates_that_cannot_be_read_are_told(model_of, name):
    with pytest.raises(SettingsError, match="holds no certificates"):
        model_of("https://localhost:1", ca_file=str(CERTIFICATES.parent / name))
