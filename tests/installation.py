"""What the tests of servers and editors start: this clone, or what `make release` has installed."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = os.environ.get("DG_LSP_RELEASE_PYTHON", sys.executable)
PYTHONPATH = {} if "DG_LSP_RELEASE_PYTHON" in os.environ else {"PYTHONPATH": str(ROOT)}
"""Variables with which the server's process imports this clone."""
PLUGIN = Path(os.environ.get("DG_LSP_RELEASE_PLUGIN", ROOT / "editors/nvim"))
VSIX = Path(os.environ.get("DG_LSP_RELEASE_VSIX", ROOT / "editors/vscode/dist/dg-lsp.vsix"))
