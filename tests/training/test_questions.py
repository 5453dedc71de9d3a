import random

from dg_lsp.training.corpus import SourceFile
from dg_lsp.training.questions import held_out_questions

from .conftest import source


def test_questions_end_lines_and_are_the_same_every_time():
    files = [SourceFile("toy", f"{i}.py", source(random.Random(i), 80)) for i in range(5)]
    questions = held_out_questions(files, 40, str.split)
    assert questions == held_out_questions(files, 40, str.split)
    assert {q.kind for q in questions} == {"line end", "whole line"}
    for question in questions:
        assert question.text[question.end] == "\n"
        assert "\n" not in question.want
        before = question.text[: question.start].rpartition("\n")[2]
        assert before.isspace() or before == "" or question.kind == "line end"
        assert not question.want.lstrip().startswith("#") or question.kind == "line end"
