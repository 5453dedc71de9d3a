"""A fake llama-server, which answers from its environment and logs its requests."""

import json
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SERVER = """
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

answer = json.loads(os.environ["FAKE_ANSWER"])
log = open(os.environ["FAKE_LOG"], "a", buffering=1)
log.write(json.dumps({"arguments": sys.argv[1:]}) + "\\n")
if answer.get("ends"):
    sys.exit("error: " + answer["ends"])
if answer.get("crashes") and "--no-repack" not in sys.argv:
    print("packing", flush=True)
    os.kill(os.getpid(), 4)
port = int(sys.argv[sys.argv.index("--port") + 1])
num_polls = 0


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        global num_polls
        num_polls += 1
        if num_polls <= answer.get("loading", 1):
            return self.respond(503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}})
        self.respond(200, {"status": "ok"})

    def do_POST(self):
        query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        log.write(json.dumps({"path": self.path, "query": query}) + "\\n")
        if answer.get("drops"):
            print("fatal error: out of memory", file=sys.stderr, flush=True)
            os._exit(1)
        if "status" in answer:
            return self.respond(answer["status"], {"error": {"code": answer["status"], "message": answer["message"]}})
        num = len(answer["content"].split())
        timings = {"prompt_n": 9, "prompt_ms": 5.5, "predicted_n": num, "predicted_ms": 2.5 * num}
        self.respond(200, {"content": answer["content"], "stop": True, "timings": timings})

    def respond(self, status, tree):
        body = json.dumps(tree).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@dataclass(frozen=True)
class FakeProgram:
    program: Path
    log: Path

    @property
    def records(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    @property
    def arguments(self):
        """Command-line arguments of the last start."""
        return [record["arguments"] for record in self.records if "arguments" in record][-1]

    @property
    def queries(self):
        return [record["query"] for record in self.records if "query" in record]

    def option(self, name):
        return self.arguments[self.arguments.index(name) + 1]


@pytest.fixture
def make_fake(tmp_path, monkeypatch):
    """`make_fake(content="x")` writes a program; the keywords are its answers."""

    def make(**answers):
        program, log = tmp_path / "fake-server", tmp_path / "fake-server.log"
        program.write_text(f"#!{sys.executable} -I\n{SERVER}")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        log.touch()
        monkeypatch.setenv("FAKE_ANSWER", json.dumps(answers))
        monkeypatch.setenv("FAKE_LOG", str(log))
        return FakeProgram(program, log)

    return make
