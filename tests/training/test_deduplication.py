import gzip
import json
import random

import numpy as np
import pytest

from dg_lsp.training import deduplication
from dg_lsp.training.deduplication import word_hashes

# HumanEval/0 (MIT), split as in HumanEval-Infilling
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
OTHER = "".join(f"def order_{i}(first, second):\n    return sorted((first, second))[{i}]\n\n" for i in range(20))


def ngrams(text, length):
    return deduplication.ngram_hashes(word_hashes(text), length).tolist()


def shared(text, hashes):
    return deduplication.num_benchmark_ngrams(word_hashes(text), hashes)


def unique_lines(seed, num_lines=60):
    """Lines that no other seed has."""
    rng, words = random.Random(seed), [f"w{seed}x{i}" for i in range(80)]
    return "".join(f"    {rng.choice(words)} = {rng.choice(words)}({rng.choice(words)})\n" for _ in range(num_lines))


def with_changed_lines(text, every):
    lines = text.splitlines(keepends=True)
    return "".join(f"    other_{i} = None\n" if i % every == 0 else line for i, line in enumerate(lines))


def signature(text):
    return deduplication.minhash(word_hashes(text))


def test_ngrams_depend_on_the_words_and_their_order_only():
    assert ngrams("def f(a, b):\n    return A+b", 3) == ngrams("DEF f a\tb ... Return a  B", 3)
    assert ngrams("one two three", 3) != ngrams("three two one", 3)
    assert [len(ngrams("a b c d", length)) for length in (1, 3, 4, 5)] == [4, 2, 1, 0]
    assert word_hashes("return").tolist() == [166712603271491781]  # in every process


def test_deduplicator_names_the_kind_of_a_duplicate():
    first, second = unique_lines(1), unique_lines(2)
    mixed = "".join(a + b for a, b in zip(first.splitlines(True)[:20], second.splitlines(True)[:20], strict=True))
    deduplicator = deduplication.Deduplicator()
    texts = [first, second, first, with_changed_lines(first, 50), mixed, unique_lines(3), ""]
    reasons = [deduplicator.rejection_reason(text, signature(text)) for text in texts]
    assert reasons == [None, None, "exact duplicate", "near duplicate", "repeated lines", None, None]


def test_copied_benchmark_text_is_found_in_any_layout(tmp_path):
    humaneval, mbpp, lines = (tmp_path / name for name in ("humaneval.jsonl.gz", "mbpp.json", "mbpp.jsonl"))
    row = {"task_id": "x/0", "prompt": PROMPT, "canonical_solution": SOLUTION, "suffix": SUFFIX, "test": "assert 1"}
    humaneval.write_bytes(gzip.compress(f"{json.dumps(row)}\n".encode()))
    mbpp.write_text(json.dumps([{"task_id": 1, "prompt": TASK, "code": CODE, "test_list": ["assert 2"]}]))
    lines.write_text(json.dumps({"text": TASK, "code": CODE}) + "\n\n")
    problems = [problem for file in (humaneval, mbpp, lines) for problem in deduplication.read_benchmark(file)]
    assert problems[0] == PROMPT + SOLUTION + SUFFIX
    assert not any("assert" in problem for problem in problems)
    assert (
        deduplication.benchmark_ngrams(problems[1:2]).tolist() == deduplication.benchmark_ngrams(problems[2:]).tolist()
    )
    deduplication.write_benchmark_hashes(deduplication.benchmark_ngrams(problems), tmp_path / "hashes.bin")
    hashes = deduplication.read_benchmark_hashes(tmp_path / "hashes.bin")
    assert shared(OTHER + SOLUTION.replace("    ", "\t") + SUFFIX, hashes) > 5
    assert shared(OTHER + f"# {TASK.upper()}\n", hashes) > 5
    assert shared(OTHER, hashes) == shared("", hashes) == shared(OTHER, np.zeros(0, np.uint64)) == 0


@pytest.mark.parametrize("code", ["x = [" + "0, 1, 2, 3, " * 5 + "]", "for i in range(n): for j in range(n): x[i, j]"])
def test_rows_of_numbers_and_bare_loops_are_not_characteristic(code):
    assert len(deduplication.benchmark_ngrams([code])) == 0


def test_bundled_hashes_cover_humaneval_and_mbpp():
    hashes = deduplication.read_benchmark_hashes()
    assert len(hashes) > 20_000
    assert np.all(hashes[:-1] < hashes[1:])
    assert shared(SOLUTION + SUFFIX, hashes) > 5
    assert shared("write a python function to remove first and last occurrence of a given character", hashes) > 3
    assert shared(OTHER, hashes) == 0
