"""Processor time to the first line of a causal model: cold, in a file that was just opened, and while typing.

    python -m dg_benchmarks.first_line MODEL --cases CASES.jsonl.gz [--num 60] [--llama-server PROGRAM]
    python -m dg_benchmarks.first_line MODEL --typed FILES [--keys 1500] [--gaps 0 200]

CASES has test cases in the format of HumanEval-Infilling; one random line of each program is completed from its first
character on. "Opened": the prompt that `didOpen` decodes in idle time is there. "Typing": that of the character before.
Everything runs on one thread, and all times are of the processor, so that other work on the machine changes little.
llama-server gets the same token ids at `/completion`, since `/infill` refuses models without fill-in-the-middle tokens.

With `--typed`, the prompt tokens of every typed character are counted instead: a third into each file, that many keys
of it are typed again, a new line with its indentation as one key. After a key the model has what a gap of so many
milliseconds leaves after a fill, in pieces of measured cost; the passes themselves are counted and not computed.
"""

import argparse
import http.client
import json
import math
import random
import re
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from dg_lsp.backends.llamacpp import LlamaDenoiser
from dg_lsp.bench import dataset
from dg_lsp.canvas.layout import NOTHING
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli.loading import open_engine
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.decode_run import Stopwatch
from dg_lsp.engine.decoder_selection import PositionKind
from dg_lsp.engine.engine import LocalEngine, drain
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.result import FillResult
from dg_lsp.server.session import FIRST_CHARS
from dg_lsp.settings import ModelSettings, Settings

MAX_TOKENS = 64


class Case(NamedTuple):
    """A line of a program."""

    before: str
    line: str
    after: str


def read_cases(path: Path, num: int) -> list[Case]:
    """One random line of code from each program."""
    rng, cases = random.Random(0), []
    for program in dataset.read_cases(path):
        text = program.prefix + program.reference + program.suffix
        lines, code = text.split("\n"), text.rfind('"""') + 3
        starts = [sum(len(line) + 1 for line in lines[:number]) for number in range(len(lines))]
        body = [i for i, line in enumerate(lines) if starts[i] > code and line.strip() and line.strip()[0] != "#"]
        if body:
            at = rng.choice(body)
            cursor = starts[at] + len(lines[at]) - len(lines[at].lstrip())
            end = starts[at] + len(lines[at])
            cases.append(Case(text[:cursor], text[cursor:end], text[end:]))
    return cases[:num]


class Engine:
    """The product's engine on one thread."""

    def __init__(self, model: str) -> None:
        engine = open_engine(Settings(model=ModelSettings(name=model, gpu_layers=0, threads=1)))
        assert isinstance(engine, LocalEngine)
        self.engine, self._model = engine, engine._model

    def forget(self) -> None:
        """Empties the prompt cache."""
        for slot in range(self._model.denoiser.num_slots):
            self._model.denoiser.prefill(slot, NOTHING)
            self._model.slots.hold(slot, NOTHING)

    def request(self, case: Case, num_missing: int = 0) -> FillRequest:
        """A fill of one line; the cursor may be some characters before the line."""
        before = case.before[: len(case.before) - num_missing]
        return FillRequest(Snapshot("file:///a.py", 0, before + case.after), len(before), max_lines=1)

    def fill(self, case: Case) -> tuple[float, FillResult]:
        """Milliseconds and result."""
        request, began = self.request(case), time.thread_time()
        result = self.engine.fill(request, deadline=math.inf)
        return 1e3 * (time.thread_time() - began), result.confident(0.0)

    def warm_up(self, request: FillRequest) -> None:
        """Decodes its prompt."""
        drain(self.engine.warm_up(request))

    def ids(self, request: FillRequest) -> list[int]:
        """Its prompt."""
        ids: list[int] = self.engine._layout(request, self._model, DecoderName.AUTOREGRESSIVE).prompt_ids.tolist()
        return ids


class Server:
    """llama-server on one thread."""

    def __init__(self, program: Path, model: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        options = {
            "port": self._port,
            "model": model,
            "threads": 1,
            "threads-batch": 1,
            "ctx-size": 2048,
            "parallel": 1,
        }
        command = [str(program), "--host", "127.0.0.1", *(f for k, v in options.items() for f in (f"--{k}", str(v)))]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            with suppress(OSError):
                if self._send("GET", "/health", None)[0] == http.client.OK:
                    return
            time.sleep(0.1)
        raise SystemExit(f"{program} is not ready")

    def answer(self, ids: list[int], *, num: int = MAX_TOKENS, is_warm: bool = False) -> tuple[float, str]:
        """Milliseconds and text of a completion."""
        began = self._seconds()
        body = {"prompt": ids, "n_predict": num, "stop": ["\n"], "temperature": 0.0, "samplers": ["temperature"]}
        _, reply = self._send("POST", "/completion", {**body, "cache_prompt": is_warm, "id_slot": 0})
        return 1e3 * (self._seconds() - began), str(reply.get("content", ""))

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()

    def _seconds(self) -> float:
        return sum(psutil.Process(self._process.pid).cpu_times()[:2])

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, dict[str, Any]]:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"{}")


class Typist:
    """Types into files beside an engine whose passes are counted only."""

    def __init__(self, engine: Engine, text: str) -> None:
        """Measures a fill and a pass of a warm-up in this text."""
        self._engine, self.num_decoded = engine, 0
        case = Case(text[: len(text) // 3], "", text[len(text) // 3 :])
        fills = []
        for _ in range(5):
            engine.warm_up(engine.request(case, num_missing=1))
            fills.append(engine.fill(case)[0])
        engine.forget()
        engine.warm_up(engine.request(case))
        self.fill_ms, self.token_ms = statistics.median(fills), engine._model.speed.token_ms
        denoiser = engine._model.denoiser
        assert isinstance(denoiser, LlamaDenoiser)
        self._context = denoiser._context
        self._context.decode = self._count  # type: ignore[method-assign]
        engine.forget()

    def _count(self, *, causal: bool) -> int:
        del causal
        self.num_decoded += int(self._context.batch.native.n_tokens)
        return 0

    def keys(self, text: str, num: int, gap_ms: float) -> list[int]:
        """Prompt tokens of each key."""
        engine, found = self._engine.engine, []
        start = len(text) // 3
        keys = [start + key.end() for key in re.finditer(r"\n *|.", text[start:])][: num + 1]
        for end in keys:
            request = FillRequest(Snapshot("file:///a.py", end, text[:end] + text[keys[-1] :]), end)
            kind, before = PositionKind.of(request.cursor, request.line_limit), self.num_decoded
            run = engine._start(request, DecoderName.AUTOREGRESSIVE, kind, math.inf, Stopwatch())
            run.task.denoiser.prefill(run.task.slot, run.task.layout.prompt_ids)
            found.append(self.num_decoded - before)
            self._rest(request, gap_ms - self.fill_ms)
        return found[1:]  # the first request finds nothing

    def _rest(self, request: FillRequest, idle_ms: float) -> None:
        """Pieces of a warm-up, the last of which may end after the next key."""
        steps = self._engine.engine.warm_up(request)
        while idle_ms > 0:
            before, self._engine._model.speed.token_ms = self.num_decoded, self.token_ms
            if next(steps, None) is None:
                break
            idle_ms -= self.token_ms * (self.num_decoded - before)
        steps.close()


def report_typing(engine: Engine, files: Sequence[Path], num_keys: int, gaps: Sequence[float]) -> None:
    """Prints the prompt tokens of typed characters for each gap between two."""
    texts = [path.read_text("utf-8") for path in files]
    typist = Typist(engine, texts[0])
    print(f"fill {typist.fill_ms:.0f} ms, a prompt token {typist.token_ms:.2f} ms, {len(texts)} files")
    for gap in gaps:
        before, found = typist.num_decoded, list[int]()
        for text in texts:
            engine.forget()
            found += typist.keys(text, num_keys, gap)
        many = sorted(number for number in found if number > 16)
        total = (typist.num_decoded - before) / len(found)
        print(
            f"gap {gap:.0f} ms: {len(many)} of {len(found)} keys ({len(many) / len(found):.2%}) above 16 tokens, "
            f"at most {max(found)}, mean {statistics.mean(found):.2f}, with idle time {total:.2f}; {many[-12:]}"
        )


def measure(case: Case, engine: Engine, server: Server | None) -> Iterator[tuple[str, float]]:
    """Named numbers of one case."""
    engine.forget()
    yield "cold", engine.fill(case)[0]
    engine.forget()
    text = case.before + case.after
    engine.warm_up(FillRequest(Snapshot("file:///a.py", 0, text), min(FIRST_CHARS, len(text))))
    yield "opened", engine.fill(case)[0]
    engine.forget()
    engine.warm_up(engine.request(case, num_missing=1))
    ms, result = engine.fill(case)
    yield from (("typing", ms), ("prompt tokens of the key", result.prompt_tokens - result.cached_tokens))
    yield "right", float(result.text.rstrip() == case.line.rstrip())
    if server is not None:
        ids = engine.ids(engine.request(case))
        yield "server cold", server.answer(ids)[0]
        server.answer(engine.ids(engine.request(case, num_missing=1)), num=0)
        yield "server typing", server.answer(ids, is_warm=True)[0]


def main() -> None:
    """Prints the medians, and the ratios to llama-server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--cases", type=Path)
    parser.add_argument("--typed", type=Path, nargs="+")
    parser.add_argument("--keys", type=int, default=1500)
    parser.add_argument("--gaps", type=float, nargs="+", default=[0, 200])
    parser.add_argument("--num", type=int, default=60)
    parser.add_argument("--llama-server", type=Path)
    arguments = parser.parse_args()
    engine = Engine(str(arguments.model))
    if arguments.typed:
        report_typing(engine, arguments.typed, arguments.keys, arguments.gaps)
    if arguments.cases is None:
        return
    server = Server(arguments.llama_server, arguments.model) if arguments.llama_server else None
    found = [dict(measure(case, engine, server)) for case in read_cases(arguments.cases, arguments.num)]
    if server is not None:
        server.close()
    useful = [one for one in found if one["right"]]
    print(f"{len(found)} cases, {len(useful)} lines right")
    for name in found[0]:
        medians = (statistics.median(one[name] for one in rows) if rows else math.nan for rows in (useful, found))
        print("{}: median {:.1f} of useful lines, {:.1f} of all".format(name, *medians))
    for name in ("cold", "typing") if server is not None else ():
        ratio = statistics.geometric_mean(one[f"server {name}"] / one[name] for one in found)
        print(f"llama-server / dg-lsp, {name}: {ratio:.2f}")


if __name__ == "__main__":
    main()
