"""The settings and fixtures of dg-lsp's own tests, and a fake llama-server."""

pytest_plugins = ["conftest", "fake_llama"]
