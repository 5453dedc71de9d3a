"""Ghost text in a cell of a notebook, in the real VS Code."""

import json

from code_server import until

VIEW = (
    "[...document.querySelectorAll('iframe.webview')].map(one => one.contentDocument?.querySelector('iframe'))"
    ".map(one => one?.contentDocument).find(one => one?.querySelector('#hint'))"
)
"""The denoising view; the outputs of a notebook are another one."""
AS_NOTEBOOK = {"workbench.editorAssociations": {"*.ipynb": "jupyter-notebook"}}


def notebook(*cells):
    fields = {"code": {"execution_count": None, "outputs": []}, "markdown": {}}
    return json.dumps(
        {
            "cells": [{"cell_type": kind, "metadata": {}, "source": text, **fields[kind]} for kind, text in cells],
            "metadata": {"language_info": {"name": "python"}},
            "nbformat": 4,
            "nbformat_minor": 4,
        }
    )


def test_ghost_text_in_a_cell_depends_on_the_cells_above(open_window, take_picture):
    above = "%matplotlib inline\n\ndef mean_of(values):\n    return sum(values) / len(values)"
    cells = ("markdown", "# Measurements"), ("code", above), ("code", "values = [1.62, 1.75, 1.81]"), ("code", "")
    window = open_window(notebook(*cells), settings=AS_NOTEBOOK, name="main.ipynb")
    window.focus()
    window.type("average = mean")
    until(lambda: "average = mean" in "".join(window.lines), lambda: f"typed: {window.lines}")
    ghost = window.until_ghost()
    assert ghost.startswith("_of(")
    take_picture(window, "vscode-notebook.png")
    window.press("Tab", 9)

    def last_cell():
        window.press("s", 83, ctrl=True)
        return "".join(json.loads(window.file.read_text() or "{}").get("cells", [{}])[-1].get("source", ""))

    until(lambda: last_cell() == f"average = mean{ghost}", last_cell, pause=0.3)
    window.command("dg-lsp: Show Denoising")
    window.until(f"{VIEW}?.readyState === 'complete'", "no view")
    window.type("; print(av")
    window.until(f"{VIEW}?.querySelector('#file').textContent === 'main.ipynb'", "no name of the notebook")
