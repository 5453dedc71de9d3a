"""The budgets of lines hold."""

import budgets


def test_no_part_of_the_project_is_above_its_budget(capsys):
    assert budgets.main() == 0, capsys.readouterr().out


def test_every_part_exists():
    assert [part.name for part in budgets.parts() if not part.size] == []
