"""Recorded answers of edit models are replayed through the remote client, and scored."""

import base64
import json
import sys

from dg_benchmarks import recorded_edits
from dg_lsp.context.edit_history import Edit

HEAD = "User renamed it.\nid: rename\nlanguage: python\nfile: a.py\nrow: 2\ncol: 0\n"
TEXT = "width = 2\nprint(w)\n"
HISTORY = "<|file|> a.py\n<|old|>\nw = 2\n<|new|>\nwidth = 2\n"
QUIET = HEAD.replace("rename", "quiet") + "cursor-positions: 1:0\n"
CODE = "<<<<<<< CURRENT\nwidth = 2\n<|user_cursor|>print(w)\n=======\n"
PROMPT = f"<[fim-suffix]>\n<[fim-prefix]><filename>a.py\n{CODE}<[fim-middle]>"


def scenario(head, *sections):
    return "".join([head, *(f"-- {name} --\n{text}" for name, text in sections)])


def recording(answer):
    request = {"prompt": PROMPT}
    response = {"model": "zeta", "choices": [{"text": answer, "index": 0, "finish_reason": "stop"}]}
    entries = [{"kind": "meta"}]
    for kind, body in (("request", request), ("response", response)):
        body_b64 = base64.b64encode(json.dumps(body).encode()).decode()
        entries.append({"kind": kind, "interaction": 0, "body_b64": body_b64})
    return "\n".join(map(json.dumps, entries))


def test_the_table_has_the_scores_beside_their_baseline(tmp_path, capsys, monkeypatch):
    folder = tmp_path / recorded_edits.FOLDER
    scenarios = folder / "scenarios"
    for name, answer in (("rename", TEXT.replace("(w)", "(width)")), ("quiet", TEXT)):
        (scenarios / name).mkdir(parents=True)
        (scenarios / name / "zeta-2.ndjson").write_text(recording(answer))
    expected = TEXT.replace("(w)", "(width)")
    sections = [("buffer.txt", TEXT), ("history", HISTORY), ("expected", expected)]
    (scenarios / "rename.txtar").write_text(scenario(HEAD, *sections))
    (scenarios / "quiet.txtar").write_text(scenario(QUIET, ("buffer.txt", TEXT)))
    numbers = {"score": 0.5, "deltaChrF": 50, "showRate": 1, "quietRate": 0.5}
    (folder / "baseline.json").write_text(json.dumps({"zeta-2": numbers}))
    monkeypatch.setattr(recorded_edits, "MODELS", {"zeta-2": "zeta-2"})
    monkeypatch.setattr(sys, "argv", ["recorded_edits", str(tmp_path), "--details"])
    recorded_edits.main()
    printed = capsys.readouterr().out
    assert "zeta-2 rename 0 1.00 shown" in printed
    assert "zeta-2 quiet 1 1.00 unchanged" in printed
    assert "| zeta-2 | 1.000 | 100.0 | 100% | 100% | 0.500 | 50.0 | 100% | 50% |" in printed


def test_an_edit_of_a_history_is_where_its_new_lines_are():
    [parsed] = recorded_edits.scenarios_of(scenario(HEAD, ("buffer.txt", "\n" + TEXT), ("history", HISTORY)))
    assert parsed.edits == (Edit(1, "\n", "w = 2\n", "width = 2\n", "print(w)\n"),)
    assert parsed.expected is None


def test_only_changed_lines_are_scored():
    assert recorded_edits.delta_chrf("a\nb\nc", "a\nx\nc", "a\nx\nc") == 1.0
    assert recorded_edits.delta_chrf("a\nb\nc", "a\nb\nc", "a\nx\nc") == 0.0
