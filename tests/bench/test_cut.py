from dg_lsp.bench.cut import Source, case_middles, write_cases
from dg_lsp.bench.dataset import read_cases

FUNCTIONS = "".join(
    f"def price_{n}(count):\n    if count > {n}:\n        count -= {n}\n    total = count * {n}\n    return total\n\n\n"
    for n in range(9)
)


def test_blocks_that_start_at_one_place_make_one_case(tmp_path):
    """The body of each function and its first statement start at the same place."""
    middles = case_middles([Source("price.py", FUNCTIONS, "python")], 60, 0)
    blocks = {middle.prefix.count("\n") for middle in middles if middle.kind == "block"}
    assert len(blocks) > 9, "other blocks of the same functions are cut too"
    write_cases(middles, tmp_path / "cases.jsonl")
    assert [case.id for case in read_cases(tmp_path / "cases.jsonl")] == [middle.id for middle in middles]
