"""`python -m dg_lsp lsp` as an editor starts it, with the bundled model."""

from pathlib import Path

from installation import PYTHON

COMMAND = [PYTHON, "-m", "dg_lsp", "lsp"]


def test_the_tutorial_shows_grey_text_in_an_editor(launcher):
    source = (Path(__file__).parents[2] / "samples/account.py").read_text()
    for line, text in (("raise", 'ValueError("amount must be positive")'), ("self.balance -=", "amount")):
        source = source.replace(f"{line} \n", f"{line} {text}\n")
    source = source.replace("append()", "append(amount)").replace("len()", "len(self.h)")
    client = launcher.launch(COMMAND).begin(source)
    [item] = client.items(client.complete(22, len("        return len(self.h")))
    assert item["insertText"] == "istory"
    assert "dg-mini ready" in client.wait_log("ready")["message"]
    assert client.shown() == []
    client.check()
