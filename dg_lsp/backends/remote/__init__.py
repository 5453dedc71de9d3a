"""Models behind a server that has OpenAI's or llama.cpp's API; the only package that imports httpx."""

from dg_lsp.backends.remote.client import RemoteModel, open_remote

__all__ = ["RemoteModel", "open_remote"]
