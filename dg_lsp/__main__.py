"""`python -m dg_lsp` is `dg-lsp`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:  # Python puts the working directory first: a folder that may contain a `json.py`
        del sys.path[0]
    from dg_lsp.cli import main

    main()
