"""Types fast into a real server: every key sends an edit and a completion request.

    python benchmarks/storm.py FILE.py [--keys 500] [--rate 12]

Types the last `--keys` characters of the file into a server over its standard input and output. Prints the number of
cancelled and answered requests, the latency of the answers, and the model time of stale requests.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dg_lsp.system import python_command


class Client:
    """One server process, and every answer with its time of arrival."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.answers: dict[Any, tuple[float, dict[str, Any]]] = {}
        self.arrived = asyncio.Condition()
        self.reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls) -> "Client":
        """Starts `dg-lsp lsp` of this environment."""
        command = python_command("dg_lsp", "lsp", "--stdio")
        pipe = asyncio.subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while header := await self.process.stdout.readline():
            length = 0
            while header.strip():
                name, _, value = header.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
                header = await self.process.stdout.readline()
            message = json.loads(await self.process.stdout.readexactly(length))
            if "id" in message and "method" not in message:
                async with self.arrived:
                    self.answers[message["id"]] = (time.perf_counter(), message)
                    self.arrived.notify_all()

    def send(self, method: str, params: Any, msg_id: int | None = None) -> None:
        """Sends a request, or a notification without an id."""
        assert self.process.stdin is not None
        message = {"jsonrpc": "2.0", "method": method, "params": params, **({} if msg_id is None else {"id": msg_id})}
        body = json.dumps(message).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))

    async def answer(self, msg_id: int) -> dict[str, Any]:
        """Waits for the answer to a request."""
        async with self.arrived:
            await asyncio.wait_for(self.arrived.wait_for(lambda: msg_id in self.answers), 60)
        return self.answers[msg_id][1]


def keys(text: str, number: int) -> Iterator[tuple[int, int, str]]:
    """Line, column and character of each key, in ASCII text."""
    start = len(text) - number
    line, column = text.count("\n", 0, start), start - text.rfind("\n", 0, start) - 1
    for char in text[start:]:
        yield line, column, char
        line, column = (line + 1, 0) if char == "\n" else (line, column + 1)


async def storm(text: str, number: int, rate: float) -> None:
    """Types the end of the text, and prints the result."""
    client = await Client.start()
    uri = "file:///storm.py"
    client.send("initialize", {"processId": None, "rootUri": None, "capabilities": {}}, 0)
    await client.answer(0)
    client.send("initialized", {})
    item = {"uri": uri, "languageId": "python", "version": 0, "text": text[: len(text) - number]}
    client.send("textDocument/didOpen", {"textDocument": item})
    start = {"textDocument": {"uri": uri}, "position": {"line": 0, "character": 0}, "context": {"triggerKind": 1}}
    client.send("textDocument/inlineCompletion", start, 1)
    await client.answer(1)  # the model is loaded
    sent: dict[int, float] = {}
    began = time.perf_counter()
    for version, (line, column, char) in enumerate(keys(text, number), 1):
        await asyncio.sleep(max(0.0, began + version / rate - time.perf_counter()))
        at = {"line": line, "character": column}
        change = {"range": {"start": at, "end": at}, "text": char}
        client.send(
            "textDocument/didChange", {"textDocument": {"uri": uri, "version": version}, "contentChanges": [change]}
        )
        after = {"line": line + 1, "character": 0} if char == "\n" else {"line": line, "character": column + 1}
        sent[version + 1] = time.perf_counter()
        client.send(
            "textDocument/inlineCompletion",
            {"textDocument": {"uri": uri}, "position": after, "context": {"triggerKind": 2}},
            version + 1,
        )
    for msg_id in sent:
        await client.answer(msg_id)
    client.send("dg-lsp/stats", {}, -1)
    report(client, sent, (await client.answer(-1))["result"])
    client.process.kill()


def report(client: Client, sent: dict[int, float], stats: dict[str, float]) -> None:
    """Prints the results."""
    late = cancelled = shown = 0
    times = []
    for msg_id, when in sent.items():
        arrived, message = client.answers[msg_id]
        if "error" in message:
            cancelled += 1
            continue
        times.append(1e3 * (arrived - when))
        shown += bool(message["result"]["items"])
        newer = sent.get(msg_id + 1)
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
    asyncio.run(storm(text, arguments.keys, arguments.rate))


if __name__ == "__main__":
    main()
