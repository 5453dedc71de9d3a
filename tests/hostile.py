"""A folder with Python files named like modules that a server imports; each leaves a mark when it is executed."""

NAMES = ("json.py", "queue.py", "typing.py", "dg_lsp/__init__.py", "pip/__init__.py")


def make_hostile(folder, marks):
    """Writes the files into `folder`; a file that is executed creates one of its name in `marks`."""
    marks.mkdir()
    for name in NAMES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"open({str(marks / path.parent.name) + '-' + path.name!r}, 'w').close()\n")


def executed(marks):
    """Names of the files that were executed."""
    return sorted(path.name for path in marks.iterdir())
