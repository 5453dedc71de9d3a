"""A daemon over an engine that does what a test says: `scripted_daemon.py SCENARIO [apart]`.

With `apart` it is started as `dg-lsp daemon start --linger` starts one. Environment: as of `scripted_server.py`;
DG_TEST_ABORT is a file whose presence has the next denoising step abort the process, and is taken away by it;
DG_TEST_IDLE is how many seconds it lingers.
"""

import os
import sys
from pathlib import Path

from scripted_server import open_engine

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.daemon.place import Place
from dg_lsp.daemon.starting import start_apart
from dg_lsp.errors import DaemonRunsError


def predict(self, *args, **kwargs):
    flag = Path(os.environ.get("DG_TEST_ABORT", "nowhere"))
    if flag.exists():
        flag.unlink()
        os.abort()
    return plain_predict(self, *args, **kwargs)


plain_predict, ScriptedDenoiser.predict = ScriptedDenoiser.predict, predict


def work(on_ready):
    from dg_lsp.daemon.listening import Daemon

    idle = float(os.environ.get("DG_TEST_IDLE", "60"))
    return Daemon(Place.of_user(), open_engine, idle_seconds=idle, is_lingering=True).run(on_ready)


if __name__ == "__main__":
    try:
        if "apart" in sys.argv:
            Place.of_user().make()
            start_apart(work, Place.of_user().log)
        else:
            work(lambda: None)
    except DaemonRunsError:
        pass
