"""Many clients at once on the bundled model, through a real `dg-lsp serve`: does everybody get their own answer?

    python benchmarks/crowd.py [--clients 100] [--seconds 60] [--waiting 32] [--seed 0] [--json]

First every prompt is asked alone. Then all clients ask at the same time: prompts of their own, the very same ones as
others, some that they do not wait for, and nonsense. Whoever hears 503 or 429 waits as long as it is told. Every answer
is held against the one alone; a few change at near ties (docs/log.md). Exits with 1 at one lost, crossed or unforeseen.
"""

import argparse
import asyncio
import itertools
import json
import os
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

import psutil

from dg_lsp.system import python_command

ROOT = Path(__file__).parents[1]
SETTINGS = "[completion]\ndeadline_ms = 120000\nearly_stop_ms = 0\n[http]\nmax_queued = {waiting}\n"
"""Answers that wait for nothing but the model are the same whenever they are asked."""
WORDS = (
    "apple",
    "river",
    "copper",
    "window",
    "lamp",
    "garden",
    "silver",
    "paper",
    "tiger",
    "bridge",
    "candle",
    "forest",
)
PLACES = (
    "def show({name}):\n    print({name}, 0)\n    print({name}, 1)\n    print(",
    "class Box:\n    def __init__(self, {name}):\n        self.{name} = ",
    "def keep({name}, items):\n    if {name} in items:\n        return {name}\n    items.append(",
    "{name} = []\n\n\ndef add(item):\n    {name}.append(item)\n    return ",
)
NONSENSE = (
    ("POST", "/v1/completions", b"{", 400),
    ("POST", "/infill", b'{"input_prefix":1}', 400),
    ("POST", "/v1/completions", b'{"prompt":"\xff"}', 400),
    ("POST", "/v1/chat/completions", b'{"messages":[{"role":"user","content":"hi"}]}', 501),
    ("GET", "/v1/nowhere", b"", 404),
    ("DELETE", "/infill", b"", 405),
)
LONGEST_WAIT = 180.0
"""Seconds for an answer; after that it is lost."""
PAUSE = 0.1
"""Seconds, after an answer was lost."""
LOOKS_PER_SECOND = 4
AGAIN = (429, 503)
"""Asked to come again."""


@dataclass
class Tally:
    """What became of the requests."""

    milliseconds: list[float] = field(default_factory=list)
    """Of answers, from asking to the last byte; those that were asked to come again are not among them."""
    statuses: Counter[int] = field(default_factory=Counter)
    num_left: int = 0
    """That their client did not wait for."""
    lost: int = 0
    crossed: int = 0
    """With a name in them that only another client's prompt has."""
    changed: int = 0
    """Other than alone."""
    unforeseen: Counter[str] = field(default_factory=Counter)


@dataclass
class Look:
    """The server, from time to time."""

    resident: list[int] = field(default_factory=list)
    inside: list[int] = field(default_factory=list)


class Connection:
    """One client's, kept as long as the server keeps it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: bytes, patience: float = LONGEST_WAIT) -> tuple[int, int, bytes]:
        """Status, seconds to wait before asking again, and body; a client that loses its patience leaves."""
        try:
            return await asyncio.wait_for(self._ask(method, path, body), patience)
        except BaseException:
            self.close()
            raise

    async def _ask(self, method: str, path: str, body: bytes) -> tuple[int, int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        answer = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            self.close()
        return int(lines[0].split()[1]), int(headers.get("retry-after", 0)), answer

    def close(self) -> None:
        """Leaves, whatever the server is doing."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


class Crowd:
    """Clients that know what they should hear."""

    def __init__(self, port: int, num_clients: int, seed: int) -> None:
        self.port = port
        self.names = [f"{one}_{other}" for one, other in itertools.permutations(WORDS, 2)][:num_clients]
        self.alone: dict[str, str] = {}
        """What each prompt is answered with when nobody else asks."""
        self.tally = Tally()
        self._random = random.Random(seed)
        self._owner = re.compile("|".join(sorted(self.names, key=len, reverse=True)))

    async def ask_alone(self) -> None:
        """Each prompt once, one after the other."""
        connection = Connection(self.port)
        for name in self.names:
            for place in PLACES:
                prompt = place.format(name=name)
                status, _, body = await connection.ask("POST", "/v1/completions", _asking(prompt))
                if status != 200:
                    raise SystemExit(f"alone, a prompt is answered with {status}: {body.decode()}")
                self.alone[prompt] = _text(body)
        connection.close()

    async def ask_at_once(self, seconds: float) -> None:
        """All clients, for so long; whoever has asked by then still gets an answer."""
        until = time.monotonic() + seconds
        await asyncio.gather(*(self._client(name, random.Random(self._random.random()), until) for name in self.names))

    async def _client(self, name: str, chance: random.Random, until: float) -> None:
        connection = Connection(self.port)
        while time.monotonic() < until:
            kind = chance.random()
            try:
                if kind < 0.1:
                    await self._leave(connection, name, chance)
                elif kind < 0.15:
                    await self._talk_nonsense(connection, chance)
                else:
                    # the same prompt for all, in turns of a second, or one's own
                    asker = self.names[int(time.monotonic()) % len(self.names)] if kind < 0.25 else name
                    await self._ask(connection, asker, chance, until)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                self.tally.lost += 1
                await asyncio.sleep(PAUSE)
        connection.close()

    async def _ask(self, connection: Connection, name: str, chance: random.Random, until: float) -> None:
        prompt = chance.choice(PLACES).format(name=name)
        began = time.monotonic()
        status, seconds, body = await connection.ask("POST", "/v1/completions", _asking(prompt))
        self.tally.statuses[status] += 1
        if status == 200:
            self.tally.milliseconds.append(1e3 * (time.monotonic() - began))
            self._judge(name, prompt, _text(body))
        elif status in AGAIN and seconds:
            await asyncio.sleep(max(0.0, min(seconds, until - time.monotonic())))
        else:
            self.tally.unforeseen[f"{status} {body[:120].decode(errors='replace')}"] += 1

    def _judge(self, name: str, prompt: str, text: str) -> None:
        self.tally.crossed += any(found != name for found in self._owner.findall(text))
        self.tally.changed += text != self.alone[prompt]

    async def _leave(self, connection: Connection, name: str, chance: random.Random) -> None:
        """A prompt that is the client's own each time, so that nobody else waits for its answer."""
        prompt = f"# {chance.random()}\n{chance.choice(PLACES).format(name=name)}"
        try:
            await connection.ask("POST", "/v1/completions", _asking(prompt), chance.uniform(0.0, 0.3))
        except TimeoutError:
            self.tally.num_left += 1

    async def _talk_nonsense(self, connection: Connection, chance: random.Random) -> None:
        method, path, body, wanted = chance.choice(NONSENSE)
        status, _, _ = await connection.ask(method, path, body)
        if status != wanted and status not in AGAIN:
            self.tally.unforeseen[f"{method} {path}: {status}, not {wanted}"] += 1


async def look_on(port: int, process: psutil.Process, look: Look) -> None:
    """Notes memory and how many are inside, until it is cancelled."""
    connection = Connection(port)
    while True:
        look.resident.append(process.memory_info().rss)
        status, _, body = await connection.ask("GET", "/metrics", b"")
        if status == 200:
            [inside] = re.findall(rb"^dg_lsp_active_requests (\d+)", body, re.M)
            look.inside.append(int(inside))
        await asyncio.sleep(1 / LOOKS_PER_SECOND)


def _asking(prompt: str) -> bytes:
    return json.dumps({"prompt": prompt, "suffix": "\n", "max_tokens": 32}).encode()


def _text(body: bytes) -> str:
    return str(json.loads(body)["choices"][0]["text"])


async def measure(port: int, process: psutil.Process, asked: argparse.Namespace) -> dict[str, Any]:
    """Asks, and says what came of it."""
    crowd, look = Crowd(port, asked.clients, asked.seed), Look()
    await crowd.ask_alone()
    looking = asyncio.create_task(look_on(port, process, look))
    began = time.monotonic()
    await crowd.ask_at_once(asked.seconds)
    elapsed = time.monotonic() - began
    await asyncio.sleep(1)  # those who left are forgotten
    looking.cancel()
    tally, num = crowd.tally, max(1, crowd.tally.statuses.total())
    quantiles = statistics.quantiles(tally.milliseconds, n=100) if len(tally.milliseconds) > 1 else [0.0] * 99
    return {
        "clients": asked.clients,
        "seconds": round(elapsed, 1),
        "requests": num,
        "answers": len(tally.milliseconds),
        "answers_per_second": round(len(tally.milliseconds) / elapsed, 1),
        "latency_ms": {name: round(quantiles[at], 1) for name, at in (("p50", 49), ("p95", 94), ("p99", 98))},
        "come_again_share": round(sum(tally.statuses[status] for status in AGAIN) / num, 3),
        "left": tally.num_left,
        "lost": tally.lost,
        "crossed": tally.crossed,
        "changed": tally.changed,
        "unforeseen": dict(tally.unforeseen),
        "prompts_that_say_their_name": sum(crowd._owner.search(text) is not None for text in crowd.alone.values()),
        "most_inside": max(look.inside, default=0),
        "inside_after": look.inside[-1] if look.inside else None,
        "resident_mib": {
            "start": look.resident[0] >> 20,
            "middle": look.resident[len(look.resident) // 2] >> 20,
            "end": look.resident[-1] >> 20,
            "most": max(look.resident) >> 20,
        },
    }


def main() -> int:
    """Starts a server, and the crowd."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100, help=f"at most {len(WORDS) * (len(WORDS) - 1)}")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--waiting", type=int, default=32, help="http.max_queued of the server")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "dg-lsp.toml").write_text(SETTINGS.format(waiting=asked.waiting))
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        server = subprocess.Popen(
            python_command("dg_lsp", "serve", "--port", "0"),
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stderr is not None
            said = list(itertools.takewhile(lambda line: " ready " not in line, server.stderr))
            if server.poll() is not None:
                raise SystemExit("".join(said))
            port = int(re.findall(r":(\d+)$", said[0].strip())[0])
            found = asyncio.run(measure(port, psutil.Process(server.pid), asked))
        finally:
            server.terminate()
            server.wait()
    print(json.dumps(found) if asked.json else "\n".join(f"{name}: {value}" for name, value in found.items()))
    return int(bool(found["lost"] or found["crossed"] or found["unforeseen"]))


if __name__ == "__main__":
    sys.exit(main())
