"""What several editors on one daemon cost, beside a server of an editor's own, with the bundled model.

    python benchmarks/sharing.py [--editors 2] [--trips 1000] [--http]

Prints the memory of all processes, and how long a request takes that the model has nothing to do with. Resident memory
counts a page that several processes have for each of them; where the system says it (Linux), the proportional share
counts it once, which is what the processes cost together.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dg_lsp.system import python_command

TEXT = "class Basket:\n    def __init__(self, owner, items):\n        self.owner = owner\n        self.items = \n"
URI = "file:///basket.py"


class Editor:
    """One `dg-lsp lsp`, asked for a completion once."""

    def __init__(self, use: str) -> None:
        command = python_command("dg_lsp", "lsp", "--daemon", use)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._number = 0
        self.ask("initialize", {"processId": None, "rootUri": None, "capabilities": {}})
        self.say("initialized", {})
        item = {"uri": URI, "languageId": "python", "version": 1, "text": TEXT}
        self.say("textDocument/didOpen", {"textDocument": item})
        place = {"textDocument": {"uri": URI}, "position": {"line": 3, "character": 21}}
        while not self.ask("textDocument/inlineCompletion", {**place, "context": {"triggerKind": 1}})["items"]:
            time.sleep(0.1)  # the model is not there yet

    def say(self, method: str, params: Any, **more: Any) -> None:
        """A message."""
        assert self.process.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self.process.stdin.flush()

    def ask(self, method: str, params: Any) -> Any:
        """A request's result."""
        self._number += 1
        self.say(method, params, id=self._number)
        while (message := self._message()).get("id") != self._number:
            pass
        return message["result"]

    def leave(self) -> None:
        """Says goodbye."""
        self.ask("shutdown", None)
        self.say("exit", None)
        self.process.wait()

    def _message(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        length = 0
        while header := self.process.stdout.readline().strip():
            name, _, value = header.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        message: dict[str, Any] = json.loads(self.process.stdout.read(length))
        return message


def milliseconds(editor: Editor, trips: int) -> float:
    """The median of a request that is answered without the model."""
    times = []
    for _ in range(trips):
        began = time.perf_counter()
        editor.ask("checkStatus", {})
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


@dataclass(frozen=True, slots=True)
class Memory:
    """Of processes, in MiB."""

    resident: float
    proportional: float
    """Not a number where the system does not say it."""

    def __add__(self, other: "Memory") -> "Memory":
        return Memory(self.resident + other.resident, self.proportional + other.proportional)

    def row(self, name: str, whole: "Memory") -> str:
        """A line of the table, with what part of another one it is."""
        shares = f"{self.resident / whole.resident:6.2f} {self.proportional / whole.proportional:6.2f}"
        return f"{name:28} {self.resident:8.1f} {self.proportional:8.1f}   {shares}"


def memory(pid: int) -> Memory:
    """What a process has now."""
    process = psutil.Process(pid)
    proportional = getattr(process.memory_full_info(), "pss", math.nan)
    return Memory(process.memory_info().rss / (1 << 20), proportional / (1 << 20))


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--editors", type=int, default=2)
    parser.add_argument("--trips", type=int, default=1000)
    parser.add_argument("--http", action="store_true", help="the daemon serves HTTP as well")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DG_LSP_DAEMON_DIR"] = folder
        own = Editor("never")
        alone = memory(own.process.pid)  # nobody else has its pages yet
        own.leave()
        if asked.http:
            subprocess.run(python_command("dg_lsp", "daemon", "start", "--http", "127.0.0.1:0"), check=True)
        editors = [Editor("start") for _ in range(asked.editors)]
        daemon = memory(json.loads((Path(folder) / "daemon.json").read_text())["pid"])
        pipes = [memory(editor.process.pid) for editor in editors]
        print(f"{'MiB':28} {'resident':>8} {'share':>8}   {'of a server of its own':>13}")
        print(alone.row("a server of its own", alone))
        print(daemon.row("daemon", alone))
        for pipe in pipes:
            print(pipe.row("an editor's pipe", alone))
        print(sum(pipes, daemon).row(f"daemon and {asked.editors} editors", alone))
        own = Editor("never")
        for name, editor in (("its own server", own), ("the daemon", editors[0])) * 2:
            print(f"a request without the model, {name:15} {milliseconds(editor, asked.trips):.3f} ms")
        for editor in (own, *editors):
            editor.leave()
        subprocess.run(python_command("dg_lsp", "daemon", "stop"), check=True)


if __name__ == "__main__":
    main()
