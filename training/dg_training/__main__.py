"""Starts the command line, `python -m dg_training COMMAND`, or prints how to install what it lacks."""

import sys

from dg_lsp.errors import DgLspError


def main() -> int:
    """Run the command line. Without a dependency, print how to install it."""
    try:
        from dg_training.commands import app

        app()
    except ModuleNotFoundError as error:
        install = "in a clone, run pip install torch==2.13.0, then pip install -e . -e training"
        print(f"training needs {error.name}: {install}", file=sys.stderr)
        return 2
    except DgLspError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
