import gzip
import json

import numpy as np
import pytest

from dg_lsp.training.benchmarks import num_hits, read_hashes, read_problems, run_hashes, write_hashes
from dg_lsp.training.corpus import refusal
from dg_lsp.training.words import WordHashes, word_hashes

# HumanEval/0 (MIT), in the pieces of HumanEval-Infilling
PROMPT = '''def has_close_elements(numbers: List[float], threshold: float) -> bool:
    """ Check if in given list of numbers, are any two numbers closer to each other than
    given threshold.
    """
    for idx, elem in enumerate(numbers):
'''
SOLUTION = """        for idx2, elem2 in enumerate(numbers):
            if idx != idx2:
                distance = abs(elem - elem2)
"""
SUFFIX = """                if distance < threshold:
                    return True

    return False
"""
TASK = "Write a function to count the blue boxes of a list that weigh more than their neighbours do."
CODE = "def count_boxes(boxes):\n    return sum(box.is_blue and box.weight > box.next.weight for box in boxes)\n"
OURS = "".join(f"def order_{i}(first, second):\n    return sorted((first, second))[{i}]\n\n" for i in range(20))


def hits(text, hashes):
    return num_hits(word_hashes(text, WordHashes()), hashes)


@pytest.fixture
def files(tmp_path):
    humaneval, mbpp = tmp_path / "humaneval.jsonl.gz", tmp_path / "mbpp.json"
    row = {"task_id": "x/0", "prompt": PROMPT, "canonical_solution": SOLUTION, "suffix": SUFFIX, "test": "assert 1"}
    humaneval.write_bytes(gzip.compress(f"{json.dumps(row)}\n".encode()))
    mbpp.write_text(json.dumps([{"task_id": 1, "prompt": TASK, "code": CODE, "test_list": ["assert 2"]}]))
    return humaneval, mbpp


def test_both_formats_give_the_whole_problem_without_its_tests(files):
    humaneval, mbpp = files
    assert read_problems(humaneval) == [PROMPT + SOLUTION + SUFFIX]
    (problem,) = read_problems(mbpp)
    assert TASK in problem
    assert CODE in problem
    assert "assert" not in problem
    lines = mbpp.with_suffix(".jsonl")
    lines.write_text(json.dumps({"text": TASK, "code": CODE}) + "\n\n")
    assert run_hashes(read_problems(lines)).tolist() == run_hashes([problem]).tolist()


def test_a_copied_solution_or_task_is_found_whatever_its_layout(files, tmp_path):
    hashes = run_hashes(problem for file in files for problem in read_problems(file))
    write_hashes(hashes, tmp_path / "hashes.bin")
    hashes = read_hashes(tmp_path / "hashes.bin")
    assert hits(OURS, hashes) == 0
    assert hits(OURS + SOLUTION.replace("    ", "\t") + SUFFIX, hashes) > 5
    assert hits(OURS + f"# {TASK.upper()}\n", hashes) > 5
    assert hits("", hashes) == 0
    assert hits(OURS, np.zeros(0, np.uint64)) == 0


@pytest.mark.parametrize(
    "row", ["x = [" + "0, 1, 2, 3, 4, 5, " * 3 + "]", "for i in range(n): for j in range(n): x[i, j]"]
)
def test_rows_of_numbers_and_loops_tell_nothing(row):
    assert len(run_hashes([row])) == 0


def test_the_hashes_beside_the_code_know_humaneval_and_mbpp():
    hashes = read_hashes()
    assert len(hashes) > 20_000
    assert np.all(hashes[:-1] < hashes[1:])
    assert hits(SOLUTION + SUFFIX, hashes) > 5
    assert hits("write a python function to remove first and last occurrence of a given character", hashes) > 3
    assert hits(OURS, hashes) == 0
    assert refusal(OURS + PROMPT) == "benchmark"  # by its name, before any hash is asked
