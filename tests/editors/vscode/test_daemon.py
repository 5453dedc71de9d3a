"""A daemon that is killed behind the real VS Code."""

import os
import signal
import time

from code_server import until
from shared_daemon import kill

from dg_lsp.daemon.endpoint import Endpoint

PAUSE = 2.0


def test_ghost_text_is_back_after_the_daemon_was_killed(open_window, tmp_path):
    """Typing is enough, also after more crashes than VS Code's client accepts by default."""
    endpoint = Endpoint(tmp_path / "daemon")
    window = open_window("s = 0\n", fill="count", daemon=endpoint.folder)
    window.to_end()
    window.type("s = ")
    assert window.until_ghost() == "total(0)"
    num_typed = 0

    def type_on():
        nonlocal num_typed
        num_typed += 1
        window.type("1 + ")
        end = time.monotonic() + PAUSE
        while (is_back := window.ghost == f"total({num_typed})") is False and time.monotonic() < end:
            time.sleep(0.05)
        return is_back

    for _ in range(6):
        kill(endpoint)
        until(type_on, lambda: f"no ghost text; the status bar says {window.status_label!r}")
    assert window.texts(".notification-list-item-message") == []
    window.press("Tab", 9)
    window.until_saved(f"s = 0\ns = {'1 + ' * num_typed}total({num_typed})")
    os.kill(endpoint.read().pid, signal.SIGTERM)
