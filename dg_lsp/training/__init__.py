"""Training of the bundled model, from data to GGUF. An optional extra; no other package imports it.

    pip install "dg-lsp[training]"                      measured with torch 2.13.0
    python -m dg_lsp.training data                      download, filter and split the corpus, train the tokenizer
    python -m dg_lsp.training train --config tiny       on CPU cores; --processes 2 on a busy machine
    python -m dg_lsp.training train --config mini       on one GPU; --part 9 stops after 9 minutes, --resume continues
    python -m dg_lsp.training export --config mini
    python -m dg_lsp.training eval --config mini

All files are under --root. Only `data` needs the network. A training run needs tokenizer.json, train/ and val/.
Data flow: corpus (filtered files) > documents (fill-in-the-middle examples) > rows (packed batches with canvases) >
objective (masks and losses) > train > export > evaluate.
"""
