"""How the bundled model is made: data -> tokenizer -> model -> GGUF. An extra of its own; nothing imports it.

    pip install "dg-lsp[training]"                      torch==2.13.0 is what was measured
    python -m dg_lsp.training data                      fetch, clean and split the sources, train the tokenizer
    python -m dg_lsp.training train --config tiny       CPU cores; --processes 2 where others use them too
    python -m dg_lsp.training train --config mini       one GPU; --part 9 stops after nine minutes, --resume goes on
    python -m dg_lsp.training export --config mini --pieces
    python -m dg_lsp.training eval --config mini

Everything lies under --root. `data` needs the network; elsewhere a run needs tokenizer.json, train/ and val/ only.
`--pieces` also writes bf16 weights, all in files of at most 16 MiB; `export` and `eval` join them where the whole is
missing. The way of a batch: store (files tokenized once) > middles, documents (what is asked for) > rows (packing,
canvases) > feed (worker processes) > noise, objective (masks and losses on the device) > trainer.
"""
