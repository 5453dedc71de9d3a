"""`python -m dg_lsp lsp` as an editor starts it, with the bundled model."""

from pathlib import Path

from installation import PYTHON


def test_the_tutorial_shows_grey_text_in_an_editor(launcher):
    source = (Path(__file__).parents[2] / "samples/account.py").read_text()
    for line, text in (("raise", 'ValueError("amount must be positive")'), ("self.balance -=", "amount")):
        source = source.replace(f"{line} \n", f"{line} {text}\n")
    source = source.replace("append()", "append(amount)").replace("len()", "len(s)")
    options = {"model": {"name": "dg-base"}, "completion": {"deadline_ms": 60_000}}
    client = launcher.launch([PYTHON, "-m", "dg_lsp", "lsp"]).begin(source, **options)
    [item] = client.items(client.complete(22, len("        return len(s")))
    assert item["insertText"] == "elf.history"
    assert "dg-base ready" in client.wait_log("ready")["message"]
    assert client.shown() == []
    client.check()
