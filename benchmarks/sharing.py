"""Memory and latency of several editors that share a daemon, compared with one server per editor (bundled model).

    python benchmarks/sharing.py [--editors 2] [--trips 1000] [--http]

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
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dg_lsp.system import python_command

TEXT = "class Basket:\n    def __init__(self, owner, items):\n        self.owner = owner\n        self.items = \n"
URI = "file:///basket.py"


class Editor:
    """A client of one `dg-lsp lsp` process; its constructor waits for a first completion."""

    def __init__(self, use: str) -> None:
        """Starts the process; `use` is the value of `--daemon`."""
        command = python_command("dg_lsp", "lsp", "--daemon", use)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._number = 0
        self.request("initialize", {"processId": None, "rootUri": None, "capabilities": {}})
        self.notify("initialized", {})
        item = {"uri": URI, "languageId": "python", "version": 1, "text": TEXT}
        self.notify("textDocument/didOpen", {"textDocument": item})
        position = {"textDocument": {"uri": URI}, "position": {"line": 3, "character": 21}}
        while not self.request("textDocument/inlineCompletion", {**position, "context": {"triggerKind": 1}})["items"]:
            time.sleep(0.1)  # the model is still loading

    def notify(self, method: str, params: Any, **more: Any) -> None:
        """Sends a message without waiting for an answer."""
        assert self.process.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self.process.stdin.flush()

    def request(self, method: str, params: Any) -> Any:
        """Sends a request and returns its result."""
        self._number += 1
        self.notify(method, params, id=self._number)
        while (message := self._message()).get("id") != self._number:
            pass
        return message["result"]

    def close(self) -> None:
        """Ends the session and waits for the process."""
        self.request("shutdown", None)
        self.notify("exit", None)
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

    def __add__(self, other: "Memory") -> "Memory":
        return Memory(self.resident + other.resident, self.proportional + other.proportional)

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
    parser.add_argument("--http", action="store_true", help="the daemon serves HTTP too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DG_LSP_DAEMON_DIR"] = folder
        own = Editor("never")
        alone = memory(own.process.pid)  # no other process shares its pages yet
        own.close()
        if options.http:
            subprocess.run(python_command("dg_lsp", "daemon", "start", "--http", "127.0.0.1:0"), check=True)
        editors = [Editor("start") for _ in range(options.editors)]
        daemon = memory(json.loads((Path(folder) / "daemon.json").read_text())["pid"])
        pipes = [memory(editor.process.pid) for editor in editors]
        print(f"{'MiB':28} {'resident':>8} {'share':>8}   {'relative to its own server':>13}")
        print(alone.row("own server of one editor", alone))
        print(daemon.row("daemon", alone))
        for pipe in pipes:
            print(pipe.row("pipe of an editor", alone))
        print(sum(pipes, daemon).row(f"daemon and {options.editors} editors", alone))
        own = Editor("never")
        for name, editor in (("own server", own), ("daemon", editors[0])) * 2:
            print(f"request without the model, {name:11} {milliseconds(editor, options.trips):.3f} ms")
        for editor in (own, *editors):
            editor.close()
        subprocess.run(python_command("dg_lsp", "daemon", "stop"), check=True)


if __name__ == "__main__":
    main()
