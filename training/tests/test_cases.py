"""Test cases from the validation packages."""

import gzip
import json

from typer.testing import CliRunner

from dg_training.commands import app
from dg_training.store import CorpusFile, write_texts


def test_the_command_writes_cases_of_one_language_of_the_validation_split(sample_files, tmp_path):
    script = CorpusFile("npm:a", "a.ts", "export const a = 1;\n" * 20)
    write_texts(tmp_path / "val.jsonl.xz", [script, *sample_files])
    texts = {f"{file.package}/{file.path}": file.text for file in sample_files}
    out = tmp_path / "cases.jsonl.gz"
    command = ["test-cases", "--root", str(tmp_path), "--out", str(out), "--number", "300"]
    assert "300 test cases" in CliRunner().invoke(app, command).output
    rows = [json.loads(line) for line in gzip.decompress(out.read_bytes()).splitlines()]
    assert len({row["task_id"] for row in rows}) == len(rows) == 300
    for row in rows:
        assert row["prompt"] + row["canonical_solution"] + row["suffix"] == texts[row["path"]]
        assert row["language"] == "python"
    done = CliRunner().invoke(app, [*command, "--language", "go"])
    assert str(done.exception) == "the validation packages have no go"
