"""A daemon over an engine that does what a test says: `scripted_daemon.py SCENARIO [apart | own]`.

With `apart` it is started as `dg-lsp daemon start --linger` starts one, with `own` it is no daemon but serves one
editor over standard input and output. Environment: as of `scripted_server.py`; DG_TEST_IDLE is how many seconds it
lingers, DG_TEST_VERSION which version it is, DG_TEST_PORT has it listen on TCP, DG_TEST_HTTP serve HTTP on that port,
DG_TEST_FORKLESS has it start as where nothing can fork. DG_TEST_ABORT is a file whose presence has the process end by
a signal, SIGABRT or the one whose number it holds: at the next denoising step, or with `open` when a model is opened;
once, unless it says `always`. The model `sound` can be opened all the same.
"""

import os
import signal
import sys
import threading
from pathlib import Path

import dg_lsp

if version := os.environ.get("DG_TEST_VERSION"):
    dg_lsp.__version__ = version

from scripted_server import UNHURRIED, open_engine

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.daemon.place import Place
from dg_lsp.daemon.starting import start_apart, start_program
from dg_lsp.engine.engine import Engine
from dg_lsp.errors import DaemonRunsError


def end(*, is_opening, model=""):
    flag = Path(os.environ.get("DG_TEST_ABORT", "nowhere"))
    if not flag.exists():
        return
    words = flag.read_text().split()
    if ("open" in words) is is_opening and model != "sound":
        if "always" not in words:
            flag.unlink()
        number = next((int(word) for word in words if word.isdigit()), signal.SIGABRT)
        signal.pthread_kill(threading.get_ident(), number)


def predict(self, *args, **kwargs):
    end(is_opening=False)
    return plain_predict(self, *args, **kwargs)


plain_predict, ScriptedDenoiser.predict = ScriptedDenoiser.predict, predict


def opened(settings):
    end(is_opening=True, model=settings.model)
    if sys.argv[1] != "chat":
        return open_engine(settings)
    sys.path.append(str(Path(__file__).parents[1]))
    from chatty import chatty

    denoiser = chatty("an answer")
    return Engine(denoiser, denoiser.tokenizer, settings.fill)


def open_web(share):
    from dg_lsp.http.auth import AccessRules
    from dg_lsp.http.server import Address, HttpServer

    port = os.environ.get("DG_TEST_HTTP")
    return port and HttpServer(Address(port=int(port)), share, UNHURRIED, AccessRules(), is_persistent=True)


def work(on_ready):
    from dg_lsp.daemon.listening import Daemon

    idle, port = float(os.environ.get("DG_TEST_IDLE", "60")), os.environ.get("DG_TEST_PORT")
    how = {"idle_seconds": idle, "is_lingering": True, "port": port and int(port)}
    return Daemon(Place.of_user(), opened, **how, open_web=open_web).run(on_ready)


if __name__ == "__main__":
    place = Place.of_user()
    try:
        if "own" in sys.argv:
            from dg_lsp.server.app import serve_stdio

            sys.exit(serve_stdio(opened, UNHURRIED))
        elif "apart" not in sys.argv:
            work(lambda: None)
        elif "DG_TEST_FORKLESS" in os.environ:
            place.make()
            start_program([sys.executable, *sys.argv[:2]], place)
        else:
            place.make()
            start_apart(work, place.log)
    except DaemonRunsError:
        pass
