"""Fake llama-server and llama-diffusion-cli: they answer from their environment and log their requests."""

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

COMMAND = """
import json, os, sys

answer = json.loads(os.environ["FAKE_ANSWER"])
with open(os.environ["FAKE_LOG"], "a") as log:
    log.write(json.dumps({"arguments": sys.argv[1:]}) + "\\n")
if answer.get("ends"):
    print("error: " + answer["ends"], file=sys.stderr)
    sys.exit(1)
if answer.get("crashes"):
    print("packing", file=sys.stderr, flush=True)
    os.kill(os.getpid(), 4)
print("diffusion step: 1/16 [===] 6%", end="\\r", file=sys.stderr)
if answer.get("ms"):
    ms = f"{answer['ms']:.2f}"
    print(f"\\ntotal time: {ms}ms, time per step: 3.00ms, sampling time per step: 0.10ms", file=sys.stderr)
is_plain = {os.environ.get(f"LLAMA_ARG_LOG_{name}") for name in ("PREFIX", "TIMESTAMPS")} == {"0"}
print(("" if is_plain else "0.00.250.159 I ") + "\\n" + answer.get("content", ""), file=sys.stderr)
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
    """`make_fake("server", content="x")` writes a program; the keywords are its answers."""

    def make(kind, **answers):
        program, log = tmp_path / f"fake-{kind}", tmp_path / f"fake-{kind}.log"
        source = {"server": SERVER, "command": COMMAND}[kind]
        program.write_text(f"#!{sys.executable} -I\n{source.replace('FAKE', f'FAKE_{kind.upper()}')}")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        log.touch()
        monkeypatch.setenv(f"FAKE_{kind.upper()}_ANSWER", json.dumps(answers))
        monkeypatch.setenv(f"FAKE_{kind.upper()}_LOG", str(log))
        return FakeProgram(program, log)

    return make
