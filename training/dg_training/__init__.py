"""Training of dg-base, from data to GGUF: a project of its own, which nothing in dg_lsp imports.

See docs/training-data.md. All files are under --root, and only `data` needs the network. Data flow: corpus (filtered
files) > rows (fill-in-the-middle documents in batches, with canvases) > objective (masks and losses) > train > export.
"""
