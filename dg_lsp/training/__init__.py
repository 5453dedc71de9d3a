"""Training of the bundled model, from data to GGUF. An optional extra; no other package imports it.

See docs/training-data.md. All files are under --root, and only `data` needs the network. Data flow: corpus (filtered
files) > rows (fill-in-the-middle documents in batches, with canvases) > objective (masks and losses) > train > export >
evaluate.
"""
