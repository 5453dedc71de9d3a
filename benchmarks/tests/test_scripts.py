"""Benchmark scripts: rewrites, gaps, GPU benchmarks at toy size, the lower bound of a step."""

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dg_lsp.backends.llamacpp.diffusiongemma.runtime_check import runs_diffusiongemma
from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.engine.engine import LocalEngine

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def script():
    """Imports a script by its name."""
    return lambda name: importlib.import_module(f"dg_benchmarks.{name}")


needs_runtime = pytest.mark.skipif(
    not runs_diffusiongemma(),
    reason="the installed llama.cpp is not changed; run: dg-lsp models build-runtime",
)


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
    monkeypatch.setattr(sys, "argv", ["gaps.py", str(tmp_path), "--number", "2"])
    module.main()
    *_, autoregressive, diffusion, together = capsys.readouterr().out.splitlines()
    assert "| 3 of 4 | 2 | 2 of 2 | 0 |" in autoregressive
    assert "| 3 of 4 | 2 | 2 of 2 | 0 |" in diffusion
    assert together.startswith("| together |")


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


@pytest.fixture
def measure_part(script, capsys, tmp_path):
    """Rows of a part at toy size, by kind."""

    def measure(*part, **options):
        gpu = script("gpu")
        path = tmp_path / "toy.gguf"
        if part[0] == "llamacpp":
            script("random_gguf").write_random(gpu.TOY, part[1], path)
        options = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        gpu.main(["--toy", "--rounds", "2", "--part", *part, "--gguf", str(path), *options])
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert {line["device"] for line in lines} == {"CPU"}
        return {kind: [line["row"] for line in lines if line["kind"] == kind] for kind in gpu.KINDS}

    return measure


def check(rows):
    assert [(row["prompt"], row["canvas"]) for row in rows["StepTime"]] == [(24, 8), (24, 16), (100, 8), (100, 16)]
    for row in rows["StepTime"]:
        assert row["step_ms"] > 0
        assert row["floor_ms"] is row["over_floor"] is None
        assert 0 < row["host_share"] < 1
        assert row["sampling"] in ("host", "device")
    assert [row["prompt"] for row in rows["PrefillTime"]] == [24, 100]
    [memory] = rows["MemoryUse"]
    assert (memory["gpu_gb"], memory["gpu_estimate_gb"]) == (0, 0)
    assert memory["host_peak_gb"] > 0


def test_steps_through_transformers_are_measured(measure_part):
    check(measure_part("transformers", "bfloat16", "eager"))


@needs_runtime
def test_steps_through_llamacpp_are_measured(measure_part):
    measured = measure_part("llamacpp", "Q8_0", "graphs")
    check(measured)
    causal = measured["CausalTime"]
    assert [(row["prompt"], row["tokens"]) for row in causal] == [(24, 1), (24, 8), (100, 1), (100, 8)]
    assert all(row["pass_ms"] > 0 and list(row["break_even"]) == ["8", "16"] for row in causal)
    assert [row["draft_break_even"] for row in causal if row["tokens"] == 1] == [1, 1]


def test_a_part_without_time_begins_with_no_prompt(measure_part):
    measured = measure_part("transformers", "bfloat16", "eager", seconds=-1)
    assert [kind for kind, rows in measured.items() if rows] == ["MemoryUse"]


def test_each_step_is_compared_with_the_lower_bound(script):
    gpu = script("gpu")
    steps = [gpu.StepTime("device", 512, 32, 6.0, 0.1, 3.0, 2.0), gpu.StepTime("host", 2048, 64, 9.0, 0.2, None, None)]
    passes = [gpu.CausalTime(512, 1, 1.5, {"32": 4.0}, 1.0), gpu.CausalTime(512, 8, 3.0, {"32": 2.0}, 2.0)]
    results = {gpu.Part("llamacpp", "Q8_0", "graphs"): gpu.Result({}, "H200", [*steps, *passes], "done")}
    assert list(gpu._overview(results).markdown())[4:6] == [
        "| llamacpp Q8_0 graphs | 512 | 32 | 6.00 | 3.00 | 2.00 | 0.10 | 4.00 |",
        "| llamacpp Q8_0 graphs | 2048 | 64 | 9.00 | – | – | 0.20 | – |",
    ]


@pytest.fixture
def run_parts(script, capsys, tmp_path, monkeypatch):
    """Runs the parts of llama.cpp in Q8_0, a program in place of each; returns the output, and the modes that ran."""
    gpu, runs = script("gpu"), tmp_path / "runs"
    (tmp_path / "weights").mkdir()

    def run(program, *arguments):
        fake = tmp_path / "part.py"
        fake.write_text(f"import sys, time\nopen({str(runs)!r}, 'a').write(sys.argv[4] + '\\n')\n{program}")
        monkeypatch.setattr(gpu, "__file__", str(fake))
        runs.write_text("")
        options = ["--toy", "--backend", "llamacpp", "--type", "Q8_0", "--folder", str(tmp_path / "weights")]
        gpu.main([*options, "--output", str(tmp_path / "gpu.jsonl"), *arguments])
        assert list((tmp_path / "weights").iterdir()) == []
        return capsys.readouterr().out, runs.read_text().splitlines()

    return run


ROW = {"device": "GPU 0", "kind": "StepTime", "row": {"sampling": "device", "prompt": 24, "canvas": 8, "step_ms": 2.5}}
ROW["row"] |= {"host_share": 0.25, "floor_ms": 2.0, "over_floor": 1.25}
MEASURED = f"print({json.dumps(ROW)!r}, flush=True)\n"
CELLS = "| 24 | 8 | 2.50 | 2.00 | 1.25 | 0.25 | – |"


@needs_runtime
def test_a_part_that_fails_leaves_the_others_and_is_run_again(run_parts):
    output, run = run_parts(f"{MEASURED}if sys.argv[4] == 'graphs': sys.exit('no memory')")
    assert run == ["graphs", "no graphs"]
    assert output.startswith("## llamacpp Q8_0 graphs, GPU 0: failed: no memory\n\nDenoising steps:")
    assert output.endswith("\nllamacpp Q8_0 graphs: failed: no memory\nllamacpp Q8_0 no graphs: done\n")
    assert f"| llamacpp Q8_0 graphs {CELLS}" in output  # what it measured before
    output, run = run_parts(MEASURED)
    assert run == ["graphs"]
    assert output.count(CELLS) == 2
    assert output.endswith("\nllamacpp Q8_0 graphs: done\nllamacpp Q8_0 no graphs: done\n")
    assert run_parts(MEASURED)[1] == []
    assert run_parts(MEASURED, "--canvas", "16")[1] == ["graphs", "no graphs"]  # other measurements


@needs_runtime
def test_a_part_that_takes_too_long_is_stopped_and_keeps_its_rows(run_parts, script, monkeypatch, tmp_path):
    class Endless(subprocess.Popen):
        def wait(self, timeout=None):
            while timeout is not None:
                if "StepTime" in (tmp_path / "gpu.jsonl").read_text().splitlines()[-1]:
                    raise subprocess.TimeoutExpired(self.args, timeout)
                time.sleep(0.01)
            return super().wait()

    monkeypatch.setattr(script("gpu").subprocess, "Popen", Endless)
    output, run = run_parts(f"{MEASURED}time.sleep(600)")
    assert run == ["graphs", "no graphs"]
    assert f"| llamacpp Q8_0 no graphs {CELLS}" in output
    assert output.endswith("graphs: stopped after 480 s\nllamacpp Q8_0 no graphs: stopped after 480 s\n")


def test_no_part_begins_after_the_given_time(run_parts):
    assert run_parts(MEASURED, "--minutes", "0")[1] == []


@pytest.mark.parametrize("problem", [OSError("disk full"), ImportError("no llama_cpp")])
def test_weights_that_cannot_be_written_are_reported(run_parts, script, monkeypatch, problem):
    monkeypatch.setattr(script("gpu"), "write_random", lambda *_: (_ for _ in ()).throw(problem))
    output, run = run_parts(MEASURED)
    assert run == []
    assert output.endswith(f"Q8_0 graphs: failed: {problem}\nllamacpp Q8_0 no graphs: failed: {problem}\n")


def test_a_recording_of_typing_shows_every_moment_once(script, capsys, tmp_path):
    picture = tmp_path / "typing.svg"
    script("typing_svg").main([str(ROOT / "samples/bank.py"), "13-14", str(picture)])
    root = ElementTree.parse(picture).getroot()
    named = {element.get("id"): element.text for element in root.iter(f"{SVG}text") if element.get("id")}
    frames = root.findall(f"{SVG}g")
    last = [named[used.get("href")[1:]] for used in frames[-1].iter(f"{SVG}use")]
    assert last[-2:] == ["        if amount <= 0:", '            raise ValueError("amount must be positive")']
    assert [frame.get("visibility") for frame in frames] == ["hidden"] * (len(frames) - 1) + ["visible"]
    starts = [frame[0].get("keyTimes").split(";")[-2] for frame in frames[1:-1]]
    assert starts == sorted(set(starts), key=float)
    assert len(frames) > 10
    assert "of the keys saved" in capsys.readouterr().out


def test_a_recording_of_an_editor_shows_what_was_on_its_screen(script):
    module = script("next_edit_svg")
    screen, recording = module.Screen(), module.Recording()
    events = [
        ("default_colors_set", [0xFFFFFF, 0x101010, 0, 0, 0]),
        ("hl_attr_define", [3, {"foreground": 0xFF0000, "bold": True}, {}, []]),
        ("grid_line", [1, 0, 0, [["d", 3], ["e"], ["f"], [" ", 0, 2], ["x"]], False]),
        ("grid_line", [1, 1, 0, [["y", 0]], False]),
    ]
    for number, (name, values) in enumerate(events):
        screen.redraw(name, values)
        recording.add(screen.drawing(), 100.0 * number)
    root = ElementTree.fromstring(recording.svg("", 300, 120, "Neovim"))
    frames = root.findall(f"{SVG}g")
    assert frames[3][0].get("keyTimes") == "0;0.5"
    texts = [(text.text.strip(), text.get("style")) for text in frames[3].iter(f"{SVG}text")]
    assert texts == [("def", "fill:#ff0000;font-weight:bold"), ("x", "fill:#ffffff"), ("y", "fill:#ffffff")]
