from dg_lsp.bench.cut import Source, useful_cases
from dg_lsp.bench.dataset import read_cases, write_cases

FUNCTIONS = "".join(
    f"def price_{n}(count):\n    if count > {n}:\n        count -= {n}\n    total = count * {n}\n    return total\n\n\n"
    for n in range(9)
)


def test_blocks_that_start_at_one_place_make_one_case(tmp_path):
    """The body of each function and its first statement start at the same place."""
    cases = useful_cases([Source("price.py", FUNCTIONS, "python")], 60, 0)
    blocks = {case.prefix.count("\n") for case in cases if case.kind == "block"}
    assert len(blocks) > 9, "other blocks of the same functions are cut too"
    write_cases(cases, tmp_path / "cases.jsonl")
    assert read_cases(tmp_path / "cases.jsonl") == tuple(cases)
