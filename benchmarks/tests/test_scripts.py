"""Benchmark scripts: rewrites, gaps, GPU benchmarks at toy size, the lower bound of a step."""

import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from changed_runtime import needs_runtime
from chatty import chatty
from scripted import MASK_SPEC, ScriptedDenoiser, engine_for

from dg_benchmarks import bugs, gpu, instructions, languages, next_edit_svg, rewrites, shape, storm, typing_svg
from dg_lsp.engine.engine import LocalEngine

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def measure_rewrites(capsys, monkeypatch, tmp_path):
    """Prints the table of a file with a model that writes `fill`; returns its lines."""

    def call(fill, text, *arguments):
        def open_engine(settings):
            denoiser = ScriptedDenoiser(fill)
            return LocalEngine(denoiser, denoiser.tokenizer, settings.completion)

        monkeypatch.setattr(rewrites, "open_engine", open_engine)
        (tmp_path / "a.py").write_text(text)
        monkeypatch.setattr(sys, "argv", ["rewrites.py", str(tmp_path), *arguments])
        rewrites.main()
        return capsys.readouterr().out.splitlines()

    return call


@pytest.mark.parametrize(
    ("fill", "row"), [("abc = 2", "| 1 | 6 | 6 | 0 |  |"), ("print 3", "| 1 | 6 | 0 | 0 | syntax-error 6 |")]
)
def test_rewrites_that_are_shown_and_that_break_the_file_are_counted(measure_rewrites, fill, row):
    assert measure_rewrites(fill, "abc = 1\n", "--number", "6", "--strengths", "1")[-1] == row


def test_gaps_filled_one_after_the_other_and_together_are_compared(measure_rewrites):
    text = "def f():\n    a = 11111\n    return 11111\n"
    *_, autoregressive, diffusion, together = measure_rewrites("11111", text, "--gaps", "--number", "2")
    assert "| 3 of 4 | 2 | 2 of 2 | 0 |" in autoregressive
    assert "| 3 of 4 | 2 | 2 of 2 | 0 |" in diffusion
    assert together.startswith("| together |")


class InProcess:
    """Runs programs of this repository, which are harmless, without bubblewrap."""

    def failure(self, program):
        try:
            exec(compile(program, "program", "exec"), {"__name__": "program"})
        except (Exception, SystemExit) as error:  # noqa: BLE001
            return repr(error)
        return ""


def test_no_edit_by_instruction_is_right_before_it_is_made():
    edits = instructions.edits()
    texts = [instructions.request_of(edit).snapshot.text for edit in edits]
    right = [edit for edit, text in zip(edits, texts, strict=True) if instructions.is_right(edit, text, InProcess())]
    assert (len(edits), right) == (40, [])


def test_an_edit_by_instruction_is_made_and_judged():
    denoiser = chatty("```python\ndef is_even(number):\n    return number % 2 == 0\n```", MASK_SPEC)
    [edit] = [edit for edit in instructions.edits() if edit["instruction"].startswith("simplify to")]
    _, text = instructions.run(engine_for(denoiser), edit)
    assert instructions.is_right(edit, text, InProcess())


def test_every_faulty_function_fails_its_test():
    functions = tomllib.loads(bugs.BUGS.read_text())["bug"]
    passing = [bug["code"] for bug in functions if not InProcess().failure(bug["code"] + bug["test"])]
    assert (len(functions), passing) == (10, [])


def gigabytes(bits, embedding_bits):
    options = {"bits": bits, "embedding_bits": embedding_bits}
    return [round(shape.REAL.step_bytes(canvas, 2000, **options) / 1e9, 1) for canvas in (16, 32, 64, 256)]


def test_the_lower_bound_follows_from_the_sizes_of_the_model():
    """Every step reads 1.674 B weights; 30 layers have 128 experts of 5.947 M each; the embedding has 0.738 B."""
    real = shape.REAL
    assert real.shared_weights + 30 * 128 * real.expert_weights + real.vocab_size * real.hidden == 25_250_283_520
    assert [round(real.experts_read(canvas), 1) for canvas in (16, 32, 64)] == [82.4, 111.8, 125.9]
    assert real.prompt_bytes(2000) == 20_480 * 2000 + 204_800 * 1023
    assert gigabytes(16, 16) == [36.0, 46.6, 51.8, 53.3]
    assert gigabytes(8, 16) == [19.7, 25.0, 27.6, 28.8]
    assert gigabytes(4.5, 6.56) == [10.7, 13.8, 15.3, 16.3]


@pytest.mark.parametrize(
    ("part", "tables"),
    [
        pytest.param(("transformers", "bfloat16"), 3, id="transformers"),
        pytest.param(("llamacpp", "Q8_0"), 4, id="llama.cpp", marks=needs_runtime),
    ],
)
def test_steps_prefill_and_memory_are_measured_at_toy_size(capsys, part, tables):
    gpu.main([*part, "--toy", "--rounds", "2"])
    out = capsys.readouterr().out
    assert out.startswith(f"## {' '.join(part)}, CPU\n")
    assert out.count("|---") and out.count(":\n\n|") == tables
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if line.startswith("| ")]
    steps = [row for row in cells if row[4:] == ["–", "–"]]
    assert [row[:2] for row in steps] == [["24", "8"], ["24", "16"], ["100", "8"], ["100", "16"]]
    assert all(float(row[2]) > 0 and 0 <= float(row[3]) < 1 for row in steps)


@pytest.mark.parametrize("part", [("transformers", "Q8_0"), ("llamacpp", "bfloat16")], ids="-".join)
def test_a_format_that_the_backend_does_not_have_is_refused(part, capsys):
    with pytest.raises(SystemExit):
        gpu.main([*part, "--toy"])
    assert "error: transformers has bfloat16, llama.cpp the others" in capsys.readouterr().err


def test_without_time_no_prompt_is_measured(capsys):
    gpu.main(["transformers", "bfloat16", "--toy", "--minutes", "-1"])
    assert "Memory:" in capsys.readouterr().out


def test_a_storm_of_which_only_the_last_request_is_answered_is_reported(capsys):
    ends = [(0.1, True, False), (0.2, False, True)]
    answers = [storm.Answer(0.0, arrived, is_cancelled, has_items) for arrived, is_cancelled, has_items in ends]
    storm.report(answers, SimpleNamespace(modelSeconds=1.0, staleSeconds=0.5, speculationSeconds=0.0))
    assert "latency p50 200.0 ms, p95 200.0 ms\nmodel time 1.00 s, 50.0 %" in capsys.readouterr().out


def test_a_language_without_files_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path), "--languages", "go", "--folder", f"go={tmp_path}"])
    languages.main()
    assert capsys.readouterr().out.endswith("|\n| go | no files\n")


def test_a_recording_of_typing_shows_every_moment_once(capsys, tmp_path):
    picture = tmp_path / "typing.svg"
    typing_svg.main([str(ROOT / "samples/bank.py"), "13-14", str(picture)])
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


def test_a_recording_of_an_editor_shows_what_was_on_its_screen():
    screen, recording = next_edit_svg.Screen(), next_edit_svg.Recording()
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
