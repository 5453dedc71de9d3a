"""`python -m dg_lsp.training data|sites|pack|train|export|eval`: one line where the extra is not installed."""

import importlib.util
import sys

NEEDED = ("torch", "tokenizers", "gguf", "datasketch")


def main() -> int:
    """Runs the command line, or says what to install."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"training needs {', '.join(missing)}: pip install 'dg-lsp[training]' (measured with torch==2.13.0)",
            file=sys.stderr,
        )
        return 2
    from dg_lsp.training.commands import app

    app()
    return 0


if __name__ == "__main__":
    sys.exit(main())
