"""The bundled model that `auto` takes: dg-base where it completes a line fast enough, else dg-mini.

The time of a line follows from the costs that every start measures. It is remembered for the file and this machine, so
that only the first start may load dg-base in vain. `doctor` and `setup` measure again.
"""

import contextlib
import json
import os

from dg_lsp.models.registry import BASE, MINI, locate
from dg_lsp.models.selection import Selection
from dg_lsp.settings import ModelSettings
from dg_lsp.system import data_folder, processor_name, system_free, write_private

VARIABLE = "DG_LSP_AUTO_MODEL"
"""Environment variable with the model that `auto` takes instead."""
MAX_LINE_MS = 300.0
MIN_FREE_BYTES = 10**9
_RECORD = "line-times.json"


def default_model(settings: ModelSettings) -> Selection:
    """The model that `auto` takes with these settings, and why."""
    from dg_lsp.errors import ModelNotFoundError

    if named := os.environ.get(VARIABLE):
        return Selection(named, f"{VARIABLE} names it")
    try:
        ms = _read().get(_key(settings), 0.0)
    except ModelNotFoundError as error:
        return Selection(MINI, str(error))
    if (free := system_free()) < MIN_FREE_BYTES:
        return Selection(MINI, f"{BASE} needs 1 GB of free memory, {free / 1e9:.1f} GB are free")
    if not ms:
        return Selection(BASE, "how long a line takes is measured at the next start")
    return _by_time(ms)


def judged(settings: ModelSettings, line_ms: float) -> Selection:
    """The same once a start of dg-base has measured its line. A faster line of an earlier start counts instead, because
    the machine was less busy then."""
    if VARIABLE in os.environ:
        return default_model(settings)
    record = _read()
    key = _key(settings)
    record[key] = min(line_ms, record.get(key, line_ms))
    _write(record)
    return _by_time(record[key])


def _by_time(ms: float) -> Selection:
    limit = f"at most {MAX_LINE_MS:.0f} ms"
    if ms > MAX_LINE_MS:
        return Selection(MINI, f"a line by {BASE} takes {ms:.0f} ms here, and {limit} are wanted")
    return Selection(BASE, f"a line takes {ms:.0f} ms here, {limit} are wanted")


def forget() -> None:
    """The next start measures again."""
    _write({})


def _key(settings: ModelSettings) -> str:
    """What the time depends on: the file, the processor, its cores and the settings. Raises ModelNotFoundError."""
    stat = locate(BASE).stat()
    runtime = (settings.threads, settings.gpu_layers, settings.device)
    return " ".join(map(str, (processor_name(), os.cpu_count(), *runtime, stat.st_size, stat.st_mtime_ns)))


def _read() -> dict[str, float]:
    """Milliseconds by key; without a readable file all is measured again."""
    try:
        tree = json.loads((data_folder() / _RECORD).read_text(encoding="utf-8"))
        return {str(key): float(ms) for key, ms in tree.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _write(record: dict[str, float]) -> None:
    with contextlib.suppress(OSError):
        data_folder().mkdir(parents=True, exist_ok=True)
        write_private(data_folder() / _RECORD, record)
