"""The mark of tests that need the changed llama.cpp."""

import pytest

from dg_lsp.backends.llamacpp.library import runs_diffusiongemma
from dg_lsp.runtime import COMMAND

needs_runtime = pytest.mark.skipif(
    not runs_diffusiongemma(),
    reason=f"the installed llama.cpp is not changed, or by an earlier version; run: {COMMAND}",
)
