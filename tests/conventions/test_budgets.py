"""The budgets of lines hold, and more lines than a budget are an error."""

import budgets
import pytest


def test_no_part_of_the_project_is_above_its_budget(capsys):
    assert budgets.main() == 0, capsys.readouterr().out


def test_every_part_exists():
    assert [part.name for part in budgets.parts(budgets.ROOT) if not part.size] == []


@pytest.mark.parametrize(("lines", "code", "row"), [(3, 0, "a 3 3 1"), (4, 1, "a 4 3 1 1 above the budget")])
def test_a_part_above_its_budget_is_an_error(tmp_path, capsys, lines, code, row):
    table = '[tool.dg-lsp.budgets]\na = { files = ["a/*.py"], budget = 3, goal = 1 }\n'
    (tmp_path / "pyproject.toml").write_text(table)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/one.py").write_text("x = 1\n" * (lines - 1))
    (tmp_path / "a/two.py").write_text("x = 1\n")
    assert budgets.main(tmp_path) == code
    assert capsys.readouterr().out.splitlines()[1].split() == row.split()
