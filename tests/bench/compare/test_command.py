"""`dg-lsp bench compare` with the bundled model and peers that are not what they seem."""

import gzip
import json

import pytest

from dg_lsp.bench import ways
from dg_lsp.bench.runs import Run
from dg_lsp.cli import INTERRUPTED, run
from dg_lsp.errors import BackendError

TEST = "def check(f):\n    assert f(2, 3) == 6\n"


def site(number, prompt, suffix, want):
    return {
        "task_id": f"s{number}",
        "prompt": prompt,
        "suffix": suffix,
        "canonical_solution": want,
        "test": TEST,
        "entry_point": "area",
    }


SITES = [
    site(0, "def area(w, h):\n    return ", "\n", "w * h"),
    site(1, "def area(w, h):\n", "\n    return a\n", "    a = w * h"),
    site(2, "def area(w, h):\n    a = w * h\n    re", "\n", "turn a"),
]


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "sites.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, SITES)).encode()))
    return path


@pytest.fixture
def bench(capsys, data):
    """`bench("--limit", 1)` -> exit code, standard output, standard error."""

    def call(*arguments):
        options = ["--threads", "1", "--gpu-layers", "0", *arguments]
        code = run(["bench", "compare", str(data), *map(str, options)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_everybody_answers_the_same_sites(bench, make_peer, tmp_path):
    server = make_peer("server", content="w * h")
    command = make_peer("command", ms=40.0, content="x<|eom|>")
    peers = ("--llama-server", server.program, "--llama-diffusion-cli", command.program)
    page, kept = tmp_path / "page.html", tmp_path / "run.jsonl"
    code, out, err = bench("--decoder", "speculative", "--json", "--limit", 2, "--output", kept, "--html", page, *peers)
    assert (code, err) == (0, "")
    tree = json.loads(out)
    assert tree["num"] == 2
    assert tree["is_complete"] is True
    names = ["diffusion", "autoregressive", "speculative", "llama-server", "llama-diffusion-cli"]
    assert list(tree["ways"]) == names
    assert {way["all"]["num"] for way in tree["ways"].values()} == {2}
    assert {one["way"] for one in tree["contrasts"]} == {*names} - {"autoregressive"}
    assert tree["baseline"] == "autoregressive"
    assert tree["length_knowledge"] == "none"
    assert tree["model"] == "dg-mini"
    assert tree["options"]["decoders"] == ["speculative"]
    assert any("start of its process" in note for note in tree["notes"])
    decoders = {attempt.way: attempt.decoder for attempt in Run.read(kept).attempts}
    assert decoders["diffusion"] == "diffusion"
    assert decoders["autoregressive"] == "autoregressive"
    assert decoders["speculative"] == "speculative"
    # the warm-up and two sites each
    assert len(server.questions) == 3
    assert len([record for record in command.records if "arguments" in record]) == 3
    assert server.option("--threads") == command.option("--threads") == "1"
    html = page.read_text(encoding="utf-8")
    assert "llama-server" in html
    assert "Times faster than autoregressive" in html


def test_a_run_goes_on_where_it_was_stopped(bench, tmp_path, monkeypatch):
    kept = tmp_path / "run.jsonl"
    answer = ways.EngineWay.answer

    def stopped(self, site):
        if len([one for one in kept.read_text().splitlines() if '"site"' in one]) == 4:
            raise KeyboardInterrupt
        return answer(self, site)

    monkeypatch.setattr(ways.EngineWay, "answer", stopped)
    code, out, _ = bench("--output", kept)
    assert code == INTERRUPTED
    assert "stopped before everybody was asked everywhere" in out
    assert "| diffusion | 1 |" in out
    assert len(Run.read(kept).attempts) == 4
    monkeypatch.setattr(ways.EngineWay, "answer", answer)
    code, out, _ = bench("--output", kept)
    assert code == 0
    assert "stopped" not in out
    assert len(Run.read(kept).attempts) == 6
    code, out, err = bench("--output", kept, "--seed", 1)
    assert (code, out) == (2, "")
    assert "options.seed differ" in err


def test_tests_are_run_when_asked_for(bench, make_peer):
    server = make_peer("server", content="w * h")
    code, out, err = bench("--execute", "--json", "--llama-server", server.program)
    assert code == 0
    assert "--execute runs programs" in err
    # right at the first site alone: elsewhere it is no program
    assert json.loads(out)["ways"]["llama-server"]["all"]["pass_at_1"] == pytest.approx(1 / 3, abs=1e-3)


def test_a_pretrained_model_takes_part(bench):
    from dg_lsp.models.registry import BUNDLED

    code, out, _ = bench("--pretrained", BUNDLED[0].path, "--json", "--limit", 1, "--warm")
    assert code == 0
    tree = json.loads(out)
    assert list(tree["ways"]) == ["diffusion", "autoregressive", "pretrained"]
    assert tree["options"]["pretrained_sha256"] == tree["model_sha256"]
    assert tree["options"]["is_warm"] is True


def test_a_peer_that_falls_over_ends_the_run_in_one_line(bench, make_peer):
    server = make_peer("server", drops=True)
    code, out, err = bench("--llama-server", server.program)
    assert (code, out) == (BackendError.exit_code, "")
    assert err.startswith("dg-lsp: llama-server does not answer (")
    assert err.endswith("): fatal error: out of cake\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--llama-server", "gone"], 2, "cannot run gone"),
        (["--llama-diffusion-cli", "gone"], 2, "cannot run gone"),
        (["--pretrained", "gone"], 3, "no model 'gone'"),
        (["--pretrained", "gemma3-270m"], 3, "dg-lsp models pull gemma3-270m"),
        (["--decoder", "guess"], 2, "guess"),
        (["--html", "no/such/page.html"], 2, "no/such"),
    ],
)
def test_wrong_use_is_one_line(bench, tmp_path, monkeypatch, arguments, code, said):
    monkeypatch.setenv("DG_LSP_DATA_DIR", str(tmp_path / "data"))
    got, out, err = bench(*arguments)
    assert (got, out) == (code, "")
    assert said in err
    assert err.count("\n") == 1
