"""Types fast into a real server: every key sends an edit and a completion request.

    python -m dg_benchmarks.storm FILE.py [--keys 500] [--rate 12]

Types the last `--keys` characters of the file into a server over its standard input and output. Prints the number of
cancelled and answered requests, the latency of the answers, and the model time of stale requests.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from dg_benchmarks.sharing import Editor


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
