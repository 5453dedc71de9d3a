"""`dg-lsp lsp` where there is a daemon: the process becomes a relay, which is a tenth of it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dg_lsp.daemon.place import Place
    from dg_lsp.settings import Settings


class DaemonUse(StrEnum):
    """Whether the model is a daemon's."""

    AUTO = "auto"
    START = "start"
    NEVER = "never"


def hand_over(settings: "Settings", over: Mapping[str, Any], use: DaemonUse | None) -> None:
    """Goes on as a relay where a daemon runs or is to be started, and does not return then; else nothing happens.

    Args:
        settings: with everything in them but the client's options.
        over: the tree of what was given on the command line.
        use: what was said of the daemon there.
    """
    from dg_lsp.daemon.place import Place

    wanted = use or DaemonUse(settings.daemon.use)
    place = Place.of_user()
    if settings.backend == "remote":  # there is no model to share
        wanted = DaemonUse.NEVER
    if wanted is DaemonUse.NEVER or (wanted is DaemonUse.AUTO and not _runs(place)):
        return
    command = relay_command(place, settings, over, sys.argv[1:], is_starting=wanted is DaemonUse.START)
    if sys.platform == "win32":  # there exec would be another process, and the editor would lose sight of it
        sys.exit(subprocess.run(command, check=False).returncode)
    sys.stdout.flush()
    os.execv(command[0], command)


def relay_command(
    place: "Place", settings: "Settings", over: Mapping[str, Any], arguments: Sequence[str], *, is_starting: bool
) -> list[str]:
    """The relay's command line, with all that it may do for a server; `arguments` are those of `dg-lsp` itself."""
    import cattrs

    from dg_lsp.system import python_command

    idle = ["--idle", str(settings.daemon.idle_seconds)]
    ways = {
        "folder": str(place.folder),
        "hello": {"settings": cattrs.unstructure(absolute(settings)), "over": absolute_tree(over)},
        "starter": python_command("dg_lsp", "daemon", "start", "--linger", *idle) if is_starting else [],
        "child": python_command("dg_lsp", *arguments, "--daemon", DaemonUse.NEVER),
    }
    return python_command("dg_lsp.daemon.relay", json.dumps(ways))


def absolute(settings: "Settings") -> "Settings":
    """The settings with a model that is found from any directory."""
    import attrs

    return attrs.evolve(settings, model=_absolute(settings.model))


def absolute_tree(over: Mapping[str, Any]) -> dict[str, Any]:
    """The same of what was given on the command line."""
    return {**over, "model": _absolute(over["model"])} if "model" in over else dict(over)


def _absolute(model: str) -> str:
    from pathlib import Path

    from dg_lsp.models.registry import known_names
    from dg_lsp.settings import anchored

    return anchored(model, Path.cwd(), known_names())


def _runs(place: "Place") -> bool:
    """Whether a daemon of this version answers; one of another is said to be there."""
    from dg_lsp import __version__
    from dg_lsp.daemon.calling import Refused, ask

    record = place.read()
    if record is None:
        return False
    if record.version != __version__:
        message = f"the daemon is dg-lsp {record.version} and this is {__version__}: run dg-lsp daemon stop"
        sys.stderr.write(f"dg-lsp: {message}\n")
        return False
    try:
        ask(record, "status")
    except (OSError, Refused):
        return False
    return True
