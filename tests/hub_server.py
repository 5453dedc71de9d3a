"""A model hub on this machine: the part of the real interface that a download needs, and ways to fail."""

import contextlib
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + 34 * "0"


class HubServer(ThreadingHTTPServer):
    """Serves `files`, by path, as one repository."""

    daemon_threads = True

    def __init__(self, repository, files):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repository = repository
        self.files = files
        self.failures = {}
        """Status and headers of the answers to requests whose path contains the key."""
        self.requests = []
        """Their paths."""

    def handle_error(self, request, client_address):
        """Several tests close the connection early."""

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def entries(self):
        for path, content in self.files.items():
            entry = {"rfilename": path, "size": len(content), "blobId": 40 * "1"}
            if not path.endswith(".json"):  # which is stored in git itself, without a SHA-256
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
            yield entry


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub, path = self.server, unquote(urlsplit(self.path).path)
        hub.requests.append(path)
        failure = next((failure for part, failure in hub.failures.items() if part in path), None)
        if failure is not None:
            self.answer(failure[0], b"{}", failure[1])
        elif path.startswith(f"/api/models/{hub.repository}/revision/"):
            self.answer(200, json.dumps({"id": hub.repository, "sha": COMMIT, "siblings": [*hub.entries()]}).encode())
        elif path.startswith(f"/{hub.repository}/resolve/{COMMIT}/"):
            content = hub.files[path.split(f"/resolve/{COMMIT}/")[1]]
            etag = f'"{hashlib.sha256(content).hexdigest()}"'
            self.answer(200, content, {"ETag": etag, "X-Repo-Commit": COMMIT})
        else:
            self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def answer(self, status, body, headers=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextlib.contextmanager
def serving(repository, files):
    server = HubServer(repository, files)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
