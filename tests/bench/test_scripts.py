"""Scripts in `benchmarks/`: parts of a step, rewrites, gaps, GPU benchmarks at toy size, the lower bound of a step."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from dg_lsp.backends.llamacpp.device_reduction import functions
from dg_lsp.backends.llamacpp.diffusiongemma import supports_bidirectional
from dg_lsp.backends.scripted import MASK_SPEC, ScriptedDenoiser
from dg_lsp.canvas.layout import token_ids
from dg_lsp.engine.engine import LocalEngine

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def script(monkeypatch):
    """Imports a script; removes all of them afterwards."""
    monkeypatch.syspath_prepend(SCRIPTS)
    before = set(sys.modules)
    yield __import__
    for name in {path.stem for path in SCRIPTS.glob("*.py")} & (set(sys.modules) - before):
        del sys.modules[name]


needs_runtime = pytest.mark.skipif(
    not supports_bidirectional(),
    reason="the installed llama.cpp is not changed; run: dg-lsp models build-runtime",
)


@pytest.fixture
def step_parts(script, capsys, monkeypatch):
    """Output of the script for a model and one request."""
    module = script("step_parts")
    [first, *_] = module.sample_requests()
    monkeypatch.setattr(module, "sample_requests", lambda: [first])

    def call(model):
        module.main(["--model", str(model), "--threads", "1", "--rounds", "1"])
        return json.loads(capsys.readouterr().out)

    return call


def test_a_step_has_parts_and_the_cached_prompt_saves_time(step_parts):
    found = step_parts("dg-mini")
    parts = found["parts"]
    assert list(parts) == ["decode", "self_conditioning", "reduction", "sampling", "python"]
    assert parts["self_conditioning"] == 0
    assert min(parts["decode"], parts["reduction"], parts["sampling"], parts["python"]) > 0
    assert {"16", "32"} <= set(found["cache_gains"])
    assert all(one["recomputed"] > one["cached"] for one in found["cache_gains"].values())


@pytest.mark.parametrize(
    ("fill", "row"), [("abc = 2", "| 1 | 6 | 6 | 0 |  |"), ("print 3", "| 1 | 6 | 0 | 0 | syntax-error 6 |")]
)
def test_rewrites_that_are_shown_and_that_break_the_file_are_counted(script, capsys, monkeypatch, tmp_path, fill, row):
    def open_engine(settings):
        denoiser = ScriptedDenoiser(fill)
        return LocalEngine(denoiser, denoiser.tokenizer, settings.completion)

    module = script("rewrites")
    monkeypatch.setattr(module, "open_engine", open_engine)
    (tmp_path / "a.py").write_text("abc = 1\n")
    monkeypatch.setattr(sys, "argv", ["rewrites.py", str(tmp_path), "--number", "6", "--strengths", "1"])
    module.main()
    assert capsys.readouterr().out.splitlines()[-1] == row


def test_gaps_filled_one_after_the_other_and_together_are_compared(script, capsys, monkeypatch, tmp_path):
    def open_engine(settings):
        denoiser = ScriptedDenoiser("11111")
        return LocalEngine(denoiser, denoiser.tokenizer, settings.completion)

    module = script("gaps")
    monkeypatch.setattr(module, "open_engine", open_engine)
    (tmp_path / "a.py").write_text("def f():\n    a = 11111\n    return 11111\n")
    film = tmp_path / "film.html"
    monkeypatch.setattr(sys, "argv", ["gaps.py", str(tmp_path), "--number", "2", "--film", str(film)])
    module.main()
    *_, autoregressive, diffusion, together = capsys.readouterr().out.splitlines()
    assert "| 3 of 4 | 2 | 2 of 2 | 0 |" in autoregressive
    assert "| 3 of 4 | 2 | 2 of 2 | 0 |" in diffusion
    assert together.startswith("| together |")
    assert "of 2 gaps right: a.py:2" in film.read_text()


def test_early_lines_are_counted_for_every_rule(script, capsys):
    module = script("early_lines")
    module.main(["--number", "2", "--canvas", "8", "--steps", "6"])
    facts, _, _, *rules = capsys.readouterr().out.splitlines()
    assert json.loads(facts)["canvases"] == 2
    assert len(rules) == len(module.STABILITIES) * len(module.BOUNDS)


@pytest.mark.parametrize(("last", "num_changed"), [(9, 0), (8, 1)])
def test_a_line_that_changes_after_it_was_settled_is_counted(script, last, num_changed):
    module = script("early_lines")
    drafts = [token_ids(ids) for ids in ([7, 9], [7, 9], [7, last])]
    course = module.Course(drafts, [np.full(2, 0.01, np.float32)] * 3, "stable")
    assert course.first_line(1, 0.1, module.LineEnd(MASK_SPEC, 0, token_ids([9]))) == (2, last == 9)
    assert course.changed(1, 0.1) == (num_changed, 2)


@needs_runtime
def test_self_conditioning_is_a_part_of_a_step(step_parts, tiny_repacked):
    found = step_parts(tiny_repacked)
    assert found["parts"]["self_conditioning"] > 0
    assert found["cache_gains"] == {}


@needs_runtime
@pytest.mark.skipif(functions() is None, reason="the changed llama.cpp is of an earlier version")
def test_steps_are_measured_by_the_place_of_the_reduction(script, capsys):
    toy = ["--vocabulary", "2048", "--width", "64", "--canvas", "8", "--rounds", "1"]
    script("reduction").main(toy)
    script("reduction").main(["--host-work", *toy])
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| 8")]
    assert [row[1] for row in rows[:2]] == ["sure", "flat"]
    assert [len(row) for row in rows] == [5, 5, 3]
    assert all(float(number) > 0 for row in rows for cell in row[-2:] for number in cell.split(" / "))


def gigabytes(shape, bits, embedding_bits):
    return [
        round(shape.step_bytes(canvas, 2000, bits=bits, embedding_bits=embedding_bits) / 1e9, 1)
        for canvas in (16, 32, 64, 256)
    ]


def test_the_lower_bound_follows_from_the_sizes_of_the_model(script):
    """Every step reads 1.674 B weights; 30 layers have 128 experts of 5.947 M each; the embedding has 0.738 B."""
    real = script("shape").REAL
    assert real.shared_weights + 30 * 128 * real.expert_weights + real.vocab_size * real.hidden == 25_250_283_520
    assert [round(real.experts_read(canvas), 1) for canvas in (16, 32, 64)] == [82.4, 111.8, 125.9]
    assert real.prompt_bytes(2000) == 20_480 * 2000 + 204_800 * 1023
    assert gigabytes(real, 16, 16) == [36.0, 46.6, 51.8, 53.3]
    assert gigabytes(real, 8, 16) == [19.7, 25.0, 27.6, 28.8]
    assert gigabytes(real, 4.5, 6.56) == [10.7, 13.8, 15.3, 16.3]


def test_a_random_gguf_has_the_real_size(script):
    shape, gguf = script("shape"), script("random_gguf")
    sizes = {kind: round(gguf.total_bytes(shape.REAL, kind) / 1e9, 1) for kind in gguf.TYPES}
    assert sizes == {"Q4_K": 15.4, "Q8_0": 26.8, "F16": 50.5}


def rows(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def check(rows, backend, kind):
    assert {(row["device"], row["backend"], row["type"]) for row in rows} == {("CPU", backend, kind)}
    steps = [row for row in rows if "step_ms" in row]
    assert [(row["prompt"], row["canvas"]) for row in steps] == [(24, 8), (24, 16), (100, 8), (100, 16)]
    assert all(row["step_ms"] > 0 and row["floor_ms"] is None for row in steps)
    assert all(0 < row["host_share"] < 1 and row["sampling"] in ("host", "device") for row in steps)
    assert [row["prompt"] for row in rows if "prefill_ms" in row] == [24, 100]
    [memory] = [row for row in rows if "gpu_gb" in row]
    assert (memory["gpu_gb"], memory["gpu_estimate_gb"]) == (0, 0)
    assert memory["host_peak_gb"] > 0


def test_steps_through_transformers_are_measured(script, capsys):
    script("gpu").main(["--toy", "--rounds", "2", "--backend", "transformers", "--json"])
    check(rows(capsys), "transformers", "bfloat16")


@needs_runtime
def test_steps_through_llamacpp_are_measured_with_and_without_graphs(script, tmp_path, capsys):
    options = ["--toy", "--rounds", "2", "--backend", "llamacpp", "--type", "Q8_0", "--folder", str(tmp_path)]
    script("gpu").main([*options, "--json"])
    found = rows(capsys)
    for mode in ("graphs", "no graphs"):
        own = [row for row in found if row["mode"] == mode]
        check(own, "llamacpp", "Q8_0")
        causal = [row for row in own if "pass_ms" in row]
        assert [(row["prompt"], row["tokens"]) for row in causal] == [(24, 1), (24, 8), (100, 1), (100, 8)]
        assert all(row["pass_ms"] > 0 and list(row["break_even"]) == ["8", "16"] for row in causal)
        assert [row["draft_break_even"] for row in causal if row["tokens"] == 1] == [1, 1]
    assert list(tmp_path.iterdir()) == []


def test_a_part_is_printed_as_markdown_and_ends_in_time(script, capsys, monkeypatch):
    module = script("gpu")
    options = ["--toy", "--rounds", "2", "--backend", "transformers"]
    with monkeypatch.context() as patched:
        patched.setattr(module, "PART_SECONDS", -1.0)
        module.main(options)
    printed = capsys.readouterr()
    assert printed.out.startswith("## transformers bfloat16 eager, CPU\n\nMemory:\n")
    assert "out of time, no prompt of 24 tokens" in printed.err
    module.main([*options, "--prompt", "24"])
    lines = capsys.readouterr().out.splitlines()
    [header] = [line for line in lines if "step ms" in line]
    assert header == "| sampling | prompt | canvas | step ms | host share | floor ms |"
    assert sum(line.startswith(("| host | 24 |", "| device | 24 |")) for line in lines) == 2


def test_a_recording_of_typing_shows_every_moment_once(script, capsys, tmp_path):
    picture = tmp_path / "typing.svg"
    script("typing_svg").main([str(SCRIPTS.parent / "samples/bank.py"), "13-14", str(picture)])
    root = ElementTree.parse(picture).getroot()
    named = {one.get("id"): one.text for one in root.iter(f"{SVG}text") if one.get("id")}
    frames = root.findall(f"{SVG}g")
    last = [named[used.get("href")[1:]] for used in frames[-1].iter(f"{SVG}use")]
    assert last[-2:] == ["        if amount <= 0:", '            raise ValueError("amount must be positive")']
    assert [frame.get("visibility") for frame in frames] == ["hidden"] * (len(frames) - 1) + ["visible"]
    starts = [frame[0].get("keyTimes").split(";")[-2] for frame in frames[1:-1]]
    assert starts == sorted(set(starts), key=float)
    assert len(frames) > 20
    assert "right" in capsys.readouterr().out
