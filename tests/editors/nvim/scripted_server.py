"""A language server whose model completes a few lines: `scripted_server.py LOG HOLD`.

Each message of the client is a line of LOG. While the file HOLD exists, no denoising step begins.
"""

import json
import sys
import time
from pathlib import Path

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.engine.engine import LocalEngine
from dg_lsp.server.app import serve_stdio
from dg_lsp.server.protocol import Protocol
from dg_lsp.settings import CompletionSettings, Settings

LOG, HOLD = Path(sys.argv[1]), Path(sys.argv[2])
KNOWN = ("def hello(name):", "def good_night(moon, stars):", "s = 'é😋' + str(3)")
BLOCK = "# later\n# than you think\n# it is"
LONGEST_HOLD = 60.0


def fill(prefix, suffix):
    """The rest of a known line, a block, or the rewritten line."""
    line = prefix[prefix.rfind("\n") + 1 :]
    if suffix.startswith("\n    return total"):
        return "total = 2 * a"
    if not line and prefix.endswith("# It is:\n"):
        return BLOCK
    return next((known[len(line) :] for known in KNOWN if line.strip() and known.startswith(line)), "")


class HeldDenoiser(ScriptedDenoiser):
    """Waits while HOLD exists."""

    def predict(self, *args):
        end = time.monotonic() + LONGEST_HOLD
        while HOLD.exists() and time.monotonic() < end:
            time.sleep(0.01)
        return super().predict(*args)


def open_engine(settings):
    denoiser = HeldDenoiser(fill)
    engine = LocalEngine(denoiser, denoiser.tokenizer, settings.completion)
    engine.follows_instructions = True
    return engine


def main():
    receive = Protocol.receive

    def logged(self, body):
        with LOG.open("a") as log:
            print(json.dumps(json.loads(body)), file=log)
        receive(self, body)

    Protocol.receive = logged
    unhurried = CompletionSettings(early_stop_ms=0, deadline_ms=60_000, min_confidence=0.0)
    return serve_stdio(open_engine, Settings(completion=unhurried))


if __name__ == "__main__":
    sys.exit(main())
