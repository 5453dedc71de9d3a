"""Models behind a server that speaks OpenAI's or llama.cpp's API; the only package that imports httpx."""

from dg_lsp.backends.remote.model import RemoteModel, open_remote

__all__ = ["RemoteModel", "open_remote"]
