"""Types fast into a real server: every key sends an edit and a completion request.

    python -m dg_benchmarks.storm FILE.py [--keys 500] [--rate 12]

Types the last `--keys` characters of the file into a server over its standard input and output. Prints the number of
cancelled and answered requests, the latency of the answers, and the model time of stale requests.
"""

import argparse
import json
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dg_lsp.system import python_command

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


def keys(text: str, number: int) -> Iterator[tuple[int, int, str]]:
    """Line, column and character of each key, in ASCII text."""
    start = len(text) - number
    line, column = text.count("\n", 0, start), start - text.rfind("\n", 0, start) - 1
    for char in text[start:]:
        yield line, column, char
        line, column = (line + 1, 0) if char == "\n" else (line, column + 1)


def storm(text: str, number: int, rate: float) -> None:
    """Types the end of the text, and prints the result."""
    editor = Editor("--stdio")
    uri = "file:///storm.py"
    sent = dict[int, float]()
    editor.open(uri, text[: len(text) - number])
    editor.answer(editor.complete(uri, 0, 0, trigger=1))  # the model is loaded
    began = time.perf_counter()
    for count, (line, column, char) in enumerate(keys(text, number), 1):
        time.sleep(max(0.0, began + count / rate - time.perf_counter()))
        at = {"line": line, "character": column}
        document = {"uri": uri, "version": count + 1}
        change = {"range": {"start": at, "end": at}, "text": char}
        editor.send("textDocument/didChange", {"textDocument": document, "contentChanges": [change]})
        after = (line + 1, 0) if char == "\n" else (line, column + 1)
        moment = time.perf_counter()
        sent[editor.complete(uri, *after, trigger=2)] = moment
    for request in sent:
        editor.answer(request)
    report(editor, sent, editor.request("dg-lsp/stats", {}))
    editor.close()


def report(editor: Editor, sent: dict[int, float], stats: dict[str, float]) -> None:
    """Prints the results."""
    late = cancelled = shown = 0
    times = []
    for request, when in sent.items():
        arrived, message = editor.answers[request]
        if "error" in message:
            cancelled += 1
            continue
        times.append(1e3 * (arrived - when))
        shown += bool(message["result"]["items"])
        newer = sent.get(request + 1)
        late += newer is not None and arrived > newer and bool(message["result"]["items"])
    quantiles = statistics.quantiles(times, n=20)
    stale = stats["staleSeconds"] / max(1e-9, stats["modelSeconds"])
    print(
        f"{len(sent)} keys; {cancelled} requests cancelled by newer ones, {len(times)} answered, {shown} with an item"
    )
    print(f"items that arrived after the next key: {late}")
    print(f"latency p50 {statistics.median(times):.1f} ms, p95 {quantiles[-1]:.1f} ms")
    print(f"model time {stats['modelSeconds']:.2f} s, {100 * stale:.1f} % of it for stale requests")
    print(f"speculative model time {stats['speculationSeconds']:.2f} s")


def main() -> None:
    """Parses the arguments and runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--keys", type=int, default=500)
    parser.add_argument("--rate", type=float, default=12.0, help="keys per second")
    arguments = parser.parse_args()
    text = arguments.file.read_text(encoding="utf-8")
    if not text.isascii() or len(text) < arguments.keys:
        parser.error("the file must be ASCII and longer than --keys")
    storm(text, arguments.keys, arguments.rate)


if __name__ == "__main__":
    main()
