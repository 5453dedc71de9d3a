"""Where this user's dg-lsp data lies."""

import os
import sys
from pathlib import Path

VARIABLE = "DG_LSP_DATA_DIR"
"""Names another folder."""


def data_folder() -> Path:
    """The folder of this user's dg-lsp data, where the system keeps such; need not be there yet."""
    if given := os.environ.get(VARIABLE):
        return Path(given).expanduser()
    if sys.platform == "darwin":
        base = Path("~/Library/Application Support")
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or "~/AppData/Local")
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share")
    return base.expanduser() / "dg-lsp"
