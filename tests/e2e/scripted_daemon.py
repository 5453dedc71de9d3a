"""`dg-lsp` with an engine of scripted_server.py: `scripted_daemon.py SCENARIO lsp --daemon start`.

Environment: as of scripted_server.py. DG_TEST_IDLE sets the idle time of daemons, DG_TEST_VERSION the version and
DG_TEST_SECONDS the limit for an answer; DG_TEST_TCP replaces Unix sockets. While the file DG_TEST_CRASH exists, the
process crashes: with the text `open` when a model is opened, else at the next denoising step. The model `sound` can
always be opened.
"""

import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path

import dg_lsp

if version := os.environ.get("DG_TEST_VERSION"):
    dg_lsp.__version__ = version

from scripted_server import open_engine

from dg_lsp import cli
from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.cli import loading, servers
from dg_lsp.daemon import client, server


def crash(*, is_opening):
    flag = Path(os.environ.get("DG_TEST_CRASH", "nowhere"))
    if flag.exists() and (flag.read_text() == "open") is is_opening:
        signal.pthread_kill(threading.get_ident(), signal.SIGABRT)


def predict(self, *args, **kwargs):
    crash(is_opening=False)
    return plain_predict(self, *args, **kwargs)


def crash_or_open(settings):
    if Path(settings.model.name).name != "sound":
        crash(is_opening=True)
    return open_engine(settings)


if __name__ == "__main__":
    plain_predict, ScriptedDenoiser.predict = ScriptedDenoiser.predict, predict
    loading.open_engine = crash_or_open
    servers.DAEMON = (sys.executable, __file__, sys.argv[1], "daemon", "run")
    client.SECONDS = float(os.environ.get("DG_TEST_SECONDS", client.SECONDS))
    idle_seconds, is_tcp = float(os.environ.get("DG_TEST_IDLE", "600")), "DG_TEST_TCP" in os.environ
    server.Daemon = partial(server.Daemon, idle_seconds=idle_seconds, is_tcp=is_tcp)
    sys.exit(cli.run(sys.argv[2:]))
