"""The settings and fixtures of dg-lsp's own tests."""

pytest_plugins = ["conftest"]
