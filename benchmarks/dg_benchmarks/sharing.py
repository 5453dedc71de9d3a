"""Memory and latency of several editors that share a daemon, compared with one server per editor (bundled model).

    python -m dg_benchmarks.sharing [--editors 2] [--trips 1000]

Prints the memory of all processes, and the latency of a request that does not use the model. The resident memory counts
a shared page once for each process. The proportional memory (Linux only) counts it once for all processes together.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import Any

import psutil

from dg_lsp.system import python_command

TEXT = "class Basket:\n    def __init__(self, owner, items):\n        self.owner = owner\n        self.items = \n"
URI = "file:///basket.py"
ANSWER_SECONDS = 120


class Editor:
    """A client of one `dg-lsp lsp` process; its constructor waits until the server is ready."""

    def __init__(self, *options: str) -> None:
        """Starts the process with these options."""
        command = python_command("dg_lsp", "lsp", *options)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.answers: dict[int, tuple[float, dict[str, Any]]] = {}
        """By id: `time.perf_counter` seconds of the arrival, and the message."""
        self._arrived = threading.Condition()
        self._number = 0
        threading.Thread(target=self._read, daemon=True).start()
        self.request("initialize", {"processId": None, "rootUri": None, "capabilities": {}})
        self.send("initialized", {})

    def open(self, uri: str, text: str) -> None:
        """Opens a Python document of version 1."""
        item = {"uri": uri, "languageId": "python", "version": 1, "text": text}
        self.send("textDocument/didOpen", {"textDocument": item})

    def send(self, method: str, params: Any, number: int | None = None) -> None:
        """Sends a message without waiting for an answer; a request has a number."""
        assert self.process.stdin is not None
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        body = json.dumps(message if number is None else {**message, "id": number}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self.process.stdin.flush()

    def complete(self, uri: str, line: int, character: int, trigger: int) -> int:
        """Sends a request for an inline completion and returns its id; `trigger` is 1 for invoked, 2 for automatic."""
        place = {"textDocument": {"uri": uri}, "position": {"line": line, "character": character}}
        self._number += 1
        self.send("textDocument/inlineCompletion", {**place, "context": {"triggerKind": trigger}}, self._number)
        return self._number

    def request(self, method: str, params: Any) -> Any:
        """Sends a request and returns its result."""
        self._number += 1
        self.send(method, params, self._number)
        return self.answer(self._number)["result"]

    def answer(self, number: int) -> dict[str, Any]:
        """Waits for the answer to a request."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: number in self.answers, ANSWER_SECONDS):
                raise SystemExit("the server does not answer")
        return self.answers[number][1]

    def close(self) -> None:
        """Ends the session and waits for the process."""
        self.request("shutdown", None)
        self.send("exit", None)
        self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while header := self.process.stdout.readline():
            length = 0
            while header.strip():
                name, _, value = header.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
                header = self.process.stdout.readline()
            message = json.loads(self.process.stdout.read(length))
            if "id" in message and "method" not in message:
                with self._arrived:
                    self.answers[message["id"]] = (time.perf_counter(), message)
                    self._arrived.notify_all()


def completing_editor(use: str) -> Editor:
    """An editor that has had a first completion; `use` is the value of `--daemon`."""
    editor = Editor("--daemon", use)
    editor.open(URI, TEXT)
    while not editor.answer(editor.complete(URI, 3, 21, trigger=1))["result"]["items"]:
        time.sleep(0.1)  # the model is still loading
    return editor


def milliseconds(editor: Editor, trips: int) -> float:
    """Median latency of a request that does not use the model."""
    times = []
    for _ in range(trips):
        began = time.perf_counter()
        editor.request("checkStatus", {})
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one or several processes, in MiB."""

    resident: float
    proportional: float
    """NaN on systems that do not report it."""

    def __add__(self, process: "Memory") -> "Memory":
        return Memory(self.resident + process.resident, self.proportional + process.proportional)

    def row(self, name: str, whole: "Memory") -> str:
        """A line of the table, with the ratio to `whole`."""
        shares = f"{self.resident / whole.resident:6.2f} {self.proportional / whole.proportional:6.2f}"
        return f"{name:28} {self.resident:8.1f} {self.proportional:8.1f}   {shares}"


def memory(pid: int) -> Memory:
    """Current memory of a process."""
    process = psutil.Process(pid)
    proportional = getattr(process.memory_full_info(), "pss", math.nan)
    return Memory(process.memory_info().rss / (1 << 20), proportional / (1 << 20))


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--editors", type=int, default=2)
    parser.add_argument("--trips", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DG_LSP_DAEMON_DIR"] = folder
        own = completing_editor("never")
        alone = memory(own.process.pid)  # no other process shares its pages yet
        own.close()
        editors = [completing_editor("start") for _ in range(options.editors)]
        status = subprocess.check_output(python_command("dg_lsp", "daemon", "status", "--json"))
        daemon = memory(json.loads(status)["pid"])
        pipes = [memory(editor.process.pid) for editor in editors]
        print(f"{'MiB':28} {'resident':>8} {'share':>8}   {'relative to its own server':>13}")
        print(alone.row("own server of one editor", alone))
        print(daemon.row("daemon", alone))
        for pipe in pipes:
            print(pipe.row("pipe of an editor", alone))
        print(sum(pipes, daemon).row(f"daemon and {options.editors} editors", alone))
        own = completing_editor("never")
        for name, editor in (("own server", own), ("daemon", editors[0])) * 2:
            print(f"request without the model, {name:11} {milliseconds(editor, options.trips):.3f} ms")
        for editor in (own, *editors):
            editor.close()
        subprocess.run(python_command("dg_lsp", "daemon", "stop"), check=True)


if __name__ == "__main__":
    main()
