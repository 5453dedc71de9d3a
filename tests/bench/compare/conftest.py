"""Programs that speak as llama-server and llama-diffusion-cli do, and write down what they were asked."""

import json
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SERVER = """
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

said = json.loads(os.environ["FAKE_SAYS"])
log = open(os.environ["FAKE_LOG"], "a", buffering=1)
log.write(json.dumps({"arguments": sys.argv[1:]}) + "\\n")
if said.get("ends"):
    sys.exit("error: " + said["ends"])
if said.get("crashes") and "--no-repack" not in sys.argv:
    print("packing", flush=True)
    os.kill(os.getpid(), 4)
port = int(sys.argv[sys.argv.index("--port") + 1])
num_looks = 0


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        global num_looks
        num_looks += 1
        if num_looks <= said.get("loading", 1):
            return self.reply(503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}})
        self.reply(200, {"status": "ok"})

    def do_POST(self):
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        log.write(json.dumps({"path": self.path, "question": question}) + "\\n")
        if said.get("drops"):
            print("fatal error: out of cake", file=sys.stderr, flush=True)
            os._exit(1)
        if "status" in said:
            return self.reply(said["status"], {"error": {"code": said["status"], "message": said["message"]}})
        num = len(said["content"].split())
        timings = {"prompt_n": 9, "prompt_ms": 5.5, "predicted_n": num, "predicted_ms": 2.5 * num}
        self.reply(200, {"content": said["content"], "stop": True, "timings": timings})

    def reply(self, status, tree):
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

said = json.loads(os.environ["FAKE_SAYS"])
with open(os.environ["FAKE_LOG"], "a") as log:
    log.write(json.dumps({"arguments": sys.argv[1:]}) + "\\n")
if said.get("ends"):
    print("error: " + said["ends"], file=sys.stderr)
    sys.exit(1)
if said.get("crashes"):
    print("packing", file=sys.stderr, flush=True)
    os.kill(os.getpid(), 4)
print("diffusion step: 1/16 [===] 6%", end="\\r", file=sys.stderr)
if "ms" in said:
    print(f"\\ntotal time: {said['ms']:.2f}ms, time per step: 3.00ms, sampling time per step: 0.10ms", file=sys.stderr)
is_plain = {os.environ.get(f"LLAMA_ARG_LOG_{name}") for name in ("PREFIX", "TIMESTAMPS")} == {"0"}
print(("" if is_plain else "0.00.250.159 I ") + "\\n" + said.get("content", ""), file=sys.stderr)
"""


@dataclass(frozen=True)
class Peer:
    program: Path
    log: Path

    @property
    def records(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    @property
    def arguments(self):
        """Of its last start."""
        return [record["arguments"] for record in self.records if "arguments" in record][-1]

    @property
    def questions(self):
        return [record["question"] for record in self.records if "question" in record]

    def option(self, name):
        return self.arguments[self.arguments.index(name) + 1]


@pytest.fixture
def make_peer(tmp_path, monkeypatch):
    """`make_peer("server", content="x")`: a program that this Python runs, with what it says in its environment."""

    def make(kind, before="", **says):
        program, log = tmp_path / f"fake-{kind}", tmp_path / f"fake-{kind}.log"
        source = {"server": SERVER, "command": COMMAND}[kind]
        program.write_text(f"#!{sys.executable} -I\n{before}\n{source.replace('FAKE', f'FAKE_{kind.upper()}')}")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        log.touch()
        monkeypatch.setenv(f"FAKE_{kind.upper()}_SAYS", json.dumps(says))
        monkeypatch.setenv(f"FAKE_{kind.upper()}_LOG", str(log))
        return Peer(program, log)

    return make
