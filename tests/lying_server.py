"""Servers that send invalid responses over a real socket."""

import re
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from socketserver import ThreadingTCPServer

TIMEOUT = 30
CERTIFICATES = Path(__file__).parent / "certificates"
"""Self-signed certificates for `localhost`, each with its key."""


class LyingServer:
    """Sends `answers[n]` to the n-th POST, the last one to all later ones; a callable gets the socket.

    `models` is the answer to a GET, which has no body. `tls` names a certificate of `tests/certificates`.
    """

    def __init__(self, *answers, models=None, tls=None):
        self.answers, self.requests, self.asked = answers, [], []
        self._models = models or reply("", "404 Not Found")
        self.left = threading.Event()
        """Set when a client has closed its connection before the answer has ended."""
        self._tls = None if tls is None else ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if tls is not None:
            self._tls.load_cert_chain(CERTIFICATES / tls)
        self._server = ThreadingTCPServer(("127.0.0.1", 0), lambda connection, *_: self._answer(connection))
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}" if self._tls is None else f"https://localhost:{self.port}"

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def answer_to(self, request):
        if request.startswith(b"GET "):
            self.asked.append(request)
            return self._models
        self.requests.append(request)
        return self.answers[min(len(self.requests), len(self.answers)) - 1]

    def _answer(self, connection):
        with suppress(OSError):
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            request = read_request(connection)
            if not request:
                return
            answer = self.answer_to(request)
            if callable(answer):
                answer(self, connection)
            else:
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            connection.close()


def read_request(connection):
    data = b""
    while not (end := data.find(b"\r\n\r\n") + 4) > 3:
        if not (chunk := connection.recv(65536)):
            return b""
        data += chunk
    length = re.search(rb"content-length: *(\d+)", data[:end], re.IGNORECASE)
    while length and len(data) < end + int(length[1]):
        data += connection.recv(65536)
    return data


def reply(body, status="200 OK", kind="application/json", **headers):
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    data = body if isinstance(body, bytes) else body.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n{lines}"
    return head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data


def events(*data):
    body = "".join(f"data: {event}\n\n" for event in data)
    return reply(body, kind="text/event-stream")


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def chunked(*parts, end=b"0\r\n\r\n"):
    """An event stream in chunks, with or without their end."""
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return HEAD[:-2] + b"Transfer-Encoding: chunked\r\n\r\n" + body + end


def endless(chunk, pause=0.0):
    """An event stream that goes on until the client closes the connection."""

    def answer(server, connection):
        connection.sendall(HEAD)
        waiting = threading.Event()
        try:
            while True:
                connection.sendall(chunk)
                waiting.wait(pause)
        except OSError:
            server.left.set()

    return answer


def silent(server, connection):
    """Reads the request and sends nothing."""
    connection.settimeout(TIMEOUT)
    with suppress(OSError):
        if not connection.recv(1):
            server.left.set()
