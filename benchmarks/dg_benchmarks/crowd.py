"""Sends requests of many clients at once to a real `dg-lsp serve`, and checks that each client gets its own answers.

    python -m dg_benchmarks.crowd [--clients 100] [--seconds 60 | --requests N] [--waiting 32] [--seed 0] [--json]

First one client sends every prompt. Then all clients send requests at the same time: their own prompts, prompts of
other clients, requests that they abandon, and invalid requests. After status 503 or 429 a client waits for the time in
`Retry-After`. Every answer is compared with the first one; a few change at near ties (docs/log.md). The exit code is 1
if a request got no answer, the answer of another client, or an unexpected status.
"""

import argparse
import asyncio
import itertools
import json
import math
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from dg_lsp.system import python_command, python_environment

SETTINGS = "[completion]\ndeadline_ms = 120000\nearly_stop_ms = 0\n"
"""Without time limits the answers do not depend on the load."""
WORDS = ("apple", "river", "copper", "door", "lamp", "garden", "silver", "paper", "tiger", "bridge", "lake", "forest")
PROMPTS = (
    "def show({name}):\n    print({name}, 0)\n    print({name}, 1)\n    print(",
    "class Box:\n    def __init__(self, {name}):\n        self.{name} = ",
    "def keep({name}, items):\n    if {name} in items:\n        return {name}\n    items.append(",
    "{name} = []\n\n\ndef add(item):\n    {name}.append(item)\n    return ",
)
INVALID = (
    ("POST", "/v1/completions", b"{", 400),
    ("POST", "/infill", b'{"input_prefix":1}', 400),
    ("POST", "/v1/completions", b'{"prompt":"\xff"}', 400),
    ("POST", "/v1/chat/completions", b'{"messages":[{"role":"user","content":"hi"}]}', 501),
    ("GET", "/v1/nowhere", b"", 404),
    ("DELETE", "/infill", b"", 405),
)
ANSWER_SECONDS = 180.0
"""Time limit of an answer; after it the request counts as lost."""
PAUSE_SECONDS = 0.1
"""Pause after a lost request."""
REFUSED = (429, 503)


@dataclass
class Tally:
    """Results of the requests."""

    milliseconds: list[float] = field(default_factory=list)
    """Time until the last byte of each answer, without refused requests."""
    statuses: Counter[int] = field(default_factory=Counter)
    num_abandoned: int = 0
    lost: int = 0
    """Requests without an answer."""
    crossed: int = 0
    """Answers with a name that only the prompt of another client has."""
    changed: int = 0
    """Answers that differ from the first one to the same prompt."""
    unexpected: Counter[str] = field(default_factory=Counter)
    """Statuses, with their messages."""


def connect(port: int) -> httpx2.AsyncClient:
    """The connection of one client, kept as long as the server keeps it."""
    return httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=None, trust_env=False)


async def send(
    connection: httpx2.AsyncClient, method: str, path: str, body: bytes, seconds: float = ANSWER_SECONDS
) -> tuple[int, int, bytes]:
    """Status, seconds until a retry, and body. After `seconds` it closes the connection and raises TimeoutError."""
    async with asyncio.timeout(seconds):
        response = await connection.request(method, path, content=body)
    return response.status_code, int(response.headers.get("retry-after", 0)), response.content


class Crowd:
    """Clients that check their answers."""

    def __init__(self, port: int, num_clients: int, seed: int) -> None:
        self.port = port
        self.names = [f"{first}_{second}" for first, second in itertools.permutations(WORDS, 2)][:num_clients]
        self.first_answers: dict[str, str] = {}
        """By prompt, without other requests at the same time."""
        self.tally = Tally()
        self._random = random.Random(seed)
        self._any_name = re.compile("|".join(sorted(self.names, key=len, reverse=True)))

    @property
    def num_named(self) -> int:
        """Prompts whose first answer has a name, so that crossed answers can be detected."""
        return sum(self._any_name.search(text) is not None for text in self.first_answers.values())

    async def send_alone(self) -> None:
        """Sends every prompt, one after the other."""
        async with connect(self.port) as connection:
            for name, template in itertools.product(self.names, PROMPTS):
                prompt = template.format(name=name)
                status, _, body = await send(connection, "POST", "/v1/completions", _request(prompt))
                if status != 200:
                    raise SystemExit(f"status {status} for a single request: {body.decode()}")
                self.first_answers[prompt] = _text(body)

    async def send_at_once(self, seconds: float, num_requests: float = math.inf) -> None:
        """Sends requests of all clients for some seconds, at most a number for each, and waits for the answers."""
        until = time.monotonic() + seconds
        sources = [random.Random(self._random.random()) for _ in self.names]
        clients = [self._client(*pair, until, num_requests) for pair in zip(self.names, sources, strict=True)]
        await asyncio.gather(*clients)

    async def _client(self, name: str, source: random.Random, until: float, num_requests: float) -> None:
        num = 0
        async with connect(self.port) as connection:
            while time.monotonic() < until and num < num_requests:
                num += 1
                kind = source.random()
                try:
                    if kind < 0.1:
                        await self._abandon(connection, name, source)
                    elif kind < 0.15:
                        await self._send_invalid(connection, source)
                    else:
                        # in some requests all clients use the same name, which changes every second
                        shared = self.names[int(time.monotonic()) % len(self.names)]
                        await self._send(connection, shared if kind < 0.25 else name, source, until)
                except (httpx2.HTTPError, TimeoutError):
                    self.tally.lost += 1
                    await asyncio.sleep(PAUSE_SECONDS)

    async def _send(self, connection: httpx2.AsyncClient, name: str, source: random.Random, until: float) -> None:
        prompt = source.choice(PROMPTS).format(name=name)
        start = time.monotonic()
        status, seconds, body = await send(connection, "POST", "/v1/completions", _request(prompt))
        self.tally.statuses[status] += 1
        if status == 200:
            text = _text(body)
            self.tally.milliseconds.append(1e3 * (time.monotonic() - start))
            self.tally.crossed += any(written != name for written in self._any_name.findall(text))
            self.tally.changed += text != self.first_answers[prompt]
        elif status in REFUSED and seconds:
            await asyncio.sleep(max(0.0, min(seconds, until - time.monotonic())))
        else:
            self.tally.unexpected[f"{status} {body[:120].decode(errors='replace')}"] += 1

    async def _abandon(self, connection: httpx2.AsyncClient, name: str, source: random.Random) -> None:
        """Sends a new prompt, which no other client shares, and closes the connection before the answer."""
        prompt = f"# {source.random()}\n{source.choice(PROMPTS).format(name=name)}"
        try:
            await send(connection, "POST", "/v1/completions", _request(prompt), source.uniform(0.0, 0.3))
        except TimeoutError:
            self.tally.num_abandoned += 1

    async def _send_invalid(self, connection: httpx2.AsyncClient, source: random.Random) -> None:
        method, path, body, expected = source.choice(INVALID)
        status, _, _ = await send(connection, method, path, body)
        if status != expected and status not in REFUSED:
            self.tally.unexpected[f"{method} {path}: {status}, not {expected}"] += 1


def _request(prompt: str) -> bytes:
    return json.dumps({"prompt": prompt, "suffix": "\n", "max_tokens": 32}).encode()


def _text(body: bytes) -> str:
    return str(json.loads(body)["choices"][0]["text"])


async def measure(port: int, options: argparse.Namespace) -> dict[str, Any]:
    """Sends the requests and returns the results as JSON values."""
    crowd = Crowd(port, options.clients, options.seed)
    await crowd.send_alone()
    start = time.monotonic()
    seconds = options.seconds if math.isinf(options.requests) else math.inf
    await crowd.send_at_once(seconds, options.requests)
    elapsed = time.monotonic() - start
    tally = crowd.tally
    num = max(1, tally.statuses.total())
    quantiles = statistics.quantiles(tally.milliseconds, n=100) if len(tally.milliseconds) > 1 else [0.0] * 99
    return {
        "clients": options.clients,
        "seconds": round(elapsed, 1),
        "requests": num,
        "answers": len(tally.milliseconds),
        "answers_per_second": round(len(tally.milliseconds) / elapsed, 1),
        "latency_ms": {name: round(quantiles[i], 1) for name, i in (("p50", 49), ("p95", 94), ("p99", 98))},
        "refused_share": round(sum(tally.statuses[status] for status in REFUSED) / num, 3),
        "abandoned": tally.num_abandoned,
        "lost": tally.lost,
        "crossed": tally.crossed,
        "changed": tally.changed,
        "unexpected": dict(tally.unexpected),
        "prompts_with_a_name_in_the_answer": crowd.num_named,
    }


def main() -> int:
    """Starts a server, sends the requests and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100, help=f"at most {len(WORDS) * (len(WORDS) - 1)}")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--requests", type=float, default=math.inf, help="requests of each client, instead of --seconds"
    )
    parser.add_argument("--waiting", type=int, default=32, help="--max-queued of the server")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "dg-lsp.toml").write_text(SETTINGS)
        server = subprocess.Popen(
            python_command("dg_lsp", "serve", "--port", "0", "--max-queued", str(options.waiting)),
            cwd=folder,
            env=python_environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stderr is not None
            lines = list(itertools.takewhile(lambda line: " ready " not in line, server.stderr))
            if server.poll() is not None:
                raise SystemExit("".join(lines))
            port = int(re.findall(r":(\d+)$", lines[0].strip())[0])
            measured = asyncio.run(measure(port, options))
        finally:
            server.terminate()
            server.wait()
    print(json.dumps(measured) if options.json else "\n".join(f"{name}: {value}" for name, value in measured.items()))
    return int(bool(measured["lost"] or measured["crossed"] or measured["unexpected"]))


if __name__ == "__main__":
    sys.exit(main())
