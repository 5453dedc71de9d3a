"""`dg_benchmarks.compare` with the bundled model, a fake llama-server and a server of our own."""

import json

import pytest
from http_server import UNHURRIED, Starter

from dg_benchmarks.compare import main
from dg_lsp.cli import loading
from dg_lsp.engine.request import DecoderName
from dg_lsp.errors import BackendError
from dg_lsp.models.registry import BUNDLED

PROGRAMS = [
    ("def area(w, h):\n    return ", "\n", "w * h"),
    ("def area(w, h):\n", "\n    return a\n", "    a = w * h"),
    ("def area(w, h):\n    a = w * h\n    re", "\n", "turn a"),
]


@pytest.fixture
def compare(capsys, tmp_path, monkeypatch):
    """`compare("--limit", 1)` -> exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DG_LSP_DATA_DIR", str(tmp_path / "data"))
    keys = ("prompt", "suffix", "canonical_solution")
    trees = [{"task_id": f"s{i}", **dict(zip(keys, case, strict=True))} for i, case in enumerate(PROGRAMS)]
    (tmp_path / "cases.jsonl").write_text("\n".join(map(json.dumps, trees)))

    def call(*arguments):
        code = main(["cases.jsonl", "--threads", "1", "--gpu-layers", "0", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_all_contenders_answer_the_same_cases(compare, make_fake, tmp_path):
    server = make_fake(content="w * h")
    lookup = DecoderName.PROMPT_LOOKUP.value
    outputs = ("--output", tmp_path / "run.jsonl")
    code, out, err = compare("--decoder", lookup, "--json", "--limit", 2, *outputs, "--llama-server", server.program)
    assert (code, err) == (0, "")
    tree = json.loads(out)
    assert (tree["num"], tree["is_complete"], tree["model"]) == (2, True, "dg-mini")
    names = ["diffusion", "autoregressive", lookup, "llama-server"]
    assert list(tree["contenders"]) == names
    assert {row["all"]["num"] for row in tree["contenders"].values()} == {2}
    assert all({*kinds} > {"all"} for kinds in tree["contenders"].values())
    assert {row["contender"] for row in tree["comparisons"]} == {*names} - {"autoregressive"}
    assert (tree["baseline"], tree["length_knowledge"]) == ("autoregressive", "none")
    assert tree["options"]["decoders"] == [lookup]
    assert any("local client" in note for note in tree["notes"])
    _, *attempts = map(json.loads, (tmp_path / "run.jsonl").read_text().splitlines())
    decoders = {attempt["contender"]: attempt["decoder"] for attempt in attempts}
    assert [decoders[name] for name in names[:3]] == names[:3]
    # a warm-up and two cases each
    assert len(server.queries) == 3
    assert server.option("--threads") == "1"


def test_a_pretrained_model_competes(compare):
    code, out, _ = compare("--pretrained", BUNDLED[0].path, "--json", "--limit", 1, "--warm", "--length", "oracle")
    assert code == 0
    tree = json.loads(out)
    assert list(tree["contenders"]) == ["diffusion", "autoregressive", "pretrained"]
    assert tree["options"]["pretrained_sha256"] == tree["model_sha256"]
    assert (tree["options"]["is_warm"], tree["length_knowledge"]) == (True, "oracle")


def test_a_server_competes_with_the_local_model(compare):
    starter = Starter()
    client = starter(open_engine=loading.open_engine, **UNHURRIED)
    served = f"http://127.0.0.1:{client.port}"
    code, out, _ = compare("--remote", served, "--json", "--limit", 2)
    starter.close()
    assert code == 0
    tree = json.loads(out)
    assert list(tree["contenders"]) == ["diffusion", "autoregressive", "remote"]
    assert tree["model"] == "dg-mini"
    assert tree["contenders"]["remote"]["all"]["model_ms_per_useful"] is None
    assert {row["model_ms_times_less"] for row in tree["comparisons"] if row["contender"] == "remote"} == {None}
    assert any(served in note for note in tree["notes"])


def test_a_failing_baseline_ends_the_run_with_one_line(compare, make_fake):
    server = make_fake(drops=True)
    code, out, err = compare("--llama-server", server.program)
    assert (code, out) == (BackendError.exit_code, "")
    assert err.startswith("compare: llama-server does not answer (")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--llama-server", "gone"], 2, "cannot run gone"),
        (["--pretrained", "gone"], 3, "no model 'gone'"),
        (["--pretrained", "mellum-4b"], 3, "dg-lsp models pull mellum-4b"),
    ],
)
def test_wrong_use_is_one_line(compare, arguments, code, message):
    got, out, err = compare(*arguments)
    assert (got, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1
