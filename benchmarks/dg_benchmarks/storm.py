"""Types fast into a real server: every key sends an edit and a completion request.

    python -m dg_benchmarks.storm FILE.py [--keys 500] [--rate 12]

Types the last `--keys` characters of the file into a server over its standard input and output. Prints the number of
cancelled and answered requests, the latency of the answers, and the model time of stale requests.
"""

import argparse
import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.client import LanguageClient

from dg_lsp.system import python_command

URI = "file:///storm.py"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to the request of one key; times are `time.perf_counter` seconds."""

    sent: float
    arrived: float
    is_cancelled: bool
    has_items: bool


def keys(text: str, number: int) -> Iterator[tuple[int, int, str]]:
    """Line, column and character of each key, in ASCII text."""
    start = len(text) - number
    line, column = text.count("\n", 0, start), start - text.rfind("\n", 0, start) - 1
    for char in text[start:]:
        yield line, column, char
        line, column = (line + 1, 0) if char == "\n" else (line, column + 1)


async def complete(
    client: LanguageClient, position: types.Position, trigger: types.InlineCompletionTriggerKind
) -> Answer:
    """Requests an inline completion."""
    context = types.InlineCompletionContext(trigger)
    params = types.InlineCompletionParams(context, types.TextDocumentIdentifier(URI), position)
    sent = time.perf_counter()
    try:
        result = await client.text_document_inline_completion_async(params)
    except JsonRpcException:
        return Answer(sent, time.perf_counter(), is_cancelled=True, has_items=False)
    has_items = isinstance(result, types.InlineCompletionList) and bool(result.items)
    return Answer(sent, time.perf_counter(), is_cancelled=False, has_items=has_items)


async def storm(text: str, number: int, rate: float) -> None:
    """Types the end of the text, and prints the result."""
    client = LanguageClient("storm", "1")
    await client.start_io(*python_command("dg_lsp", "lsp", "--stdio"))
    await client.initialize_async(types.InitializeParams(types.ClientCapabilities()))
    client.initialized(types.InitializedParams())
    item = types.TextDocumentItem(URI, "python", 1, text[: len(text) - number])
    client.text_document_did_open(types.DidOpenTextDocumentParams(item))
    # the model is loaded with the first answer
    await complete(client, types.Position(0, 0), types.InlineCompletionTriggerKind.Invoked)
    requests = []
    began = time.perf_counter()
    for count, (line, column, char) in enumerate(keys(text, number), 1):
        await asyncio.sleep(max(0.0, began + count / rate - time.perf_counter()))
        at = types.Position(line, column)
        document = types.VersionedTextDocumentIdentifier(count + 1, URI)
        change = types.TextDocumentContentChangePartial(types.Range(at, at), char)
        client.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))
        after = types.Position(line + 1, 0) if char == "\n" else types.Position(line, column + 1)
        request = complete(client, after, types.InlineCompletionTriggerKind.Automatic)
        requests.append(asyncio.create_task(request))
    answers = await asyncio.gather(*requests)
    stats = await client.protocol.send_request_async("dg-lsp/stats", {})
    report(answers, stats)
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()


def report(answers: Sequence[Answer], stats: object) -> None:
    """Prints the results; `stats` are those of the server."""
    completed = [answer for answer in answers if not answer.is_cancelled]
    times = [1e3 * (answer.arrived - answer.sent) for answer in completed]
    num_shown = sum(answer.has_items for answer in completed)
    pairs = pairwise(answers)
    num_late = sum(answer.has_items and answer.arrived > newer.sent for answer, newer in pairs)
    model, stale, ahead = (getattr(stats, f"{name}Seconds") for name in ("model", "stale", "speculation"))
    num_cancelled = len(answers) - len(completed)
    print(
        f"{len(answers)} keys; {num_cancelled} requests cancelled by newer ones, {len(completed)} answered, "
        f"{num_shown} with an item"
    )
    print(f"items that arrived after the next key: {num_late}")
    p50, p95 = np.percentile(times, [50, 95])
    print(f"latency p50 {p50:.1f} ms, p95 {p95:.1f} ms")
    print(f"model time {model:.2f} s, {100 * stale / max(1e-9, model):.1f} % of it for stale requests")
    print(f"speculative model time {ahead:.2f} s")


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
