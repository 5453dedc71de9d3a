"""`dg-lsp` with an engine of scripted_server.py: `scripted_daemon.py SCENARIO lsp --daemon start`.

Environment: as of scripted_server.py. DG_TEST_IDLE sets the idle time of daemons, DG_TEST_VERSION the version and
DG_TEST_SECONDS the limit for an answer.
"""

import os
import sys
from functools import partial
from types import ModuleType

import dg_lsp

if version := os.environ.get("DG_TEST_VERSION"):
    dg_lsp.__version__ = version

from dg_lsp import cli
from dg_lsp.cli import servers
from dg_lsp.daemon import endpoint


def open_engine(settings):
    """Imports the engine where a model is opened: most processes become a pipe."""
    import scripted_server

    return scripted_server.open_engine(settings)


if __name__ == "__main__":
    sys.modules["dg_lsp.cli.loading"] = cli.loading = ModuleType("loading")
    cli.loading.open_engine = open_engine
    servers.DAEMON = (sys.executable, __file__, sys.argv[1], "daemon", "run")
    endpoint.SECONDS = float(os.environ.get("DG_TEST_SECONDS", endpoint.SECONDS))
    if "run" in sys.argv:
        from dg_lsp.daemon import server

        server.Daemon = partial(server.Daemon, idle_seconds=float(os.environ.get("DG_TEST_IDLE", "600")))
    sys.exit(cli.run(sys.argv[2:]))
