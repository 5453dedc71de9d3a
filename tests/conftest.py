"""Property tests never fail because the machine is busy."""

from hypothesis import settings

settings.register_profile("dg-lsp", deadline=None)
settings.load_profile("dg-lsp")
