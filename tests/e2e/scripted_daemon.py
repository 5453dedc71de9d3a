"""`dg-lsp` with an engine of scripted_server.py: `scripted_daemon.py SCENARIO lsp --daemon start`.

Environment: as of scripted_server.py. DG_TEST_IDLE sets the idle time of daemons, DG_TEST_VERSION the version and
DG_TEST_SECONDS the limit for an answer.
"""

import os
import sys
from functools import partial

import dg_lsp

if version := os.environ.get("DG_TEST_VERSION"):
    dg_lsp.__version__ = version

from scripted_server import open_engine

from dg_lsp import cli
from dg_lsp.cli import loading, servers
from dg_lsp.daemon import endpoint, server

if __name__ == "__main__":
    loading.open_engine = open_engine
    servers.DAEMON = (sys.executable, __file__, sys.argv[1], "daemon", "run")
    endpoint.SECONDS = float(os.environ.get("DG_TEST_SECONDS", endpoint.SECONDS))
    server.Daemon = partial(server.Daemon, idle_seconds=float(os.environ.get("DG_TEST_IDLE", "600")))
    sys.exit(cli.run(sys.argv[2:]))
