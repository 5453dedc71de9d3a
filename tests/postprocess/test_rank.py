from dg_lsp.postprocess.validate import Candidate, Reason, Rejection, rank


def test_best_first_and_rejections_apart():
    empty, wrong = Rejection(Reason.EMPTY), Rejection(Reason.SYNTAX_ERROR, "(")
    results = [Candidate("b", -2.0), empty, Candidate("a", -1.0), wrong, Candidate("c", -3.0)]
    assert rank(results) == ((Candidate("a", -1.0), Candidate("b", -2.0), Candidate("c", -3.0)), (empty, wrong))


def test_trailing_blanks_make_no_difference_but_leading_ones_do():
    results = [Candidate("a \n", -1.0), Candidate("a", -2.0), Candidate(" a", -3.0)]
    assert rank(results) == ((Candidate("a \n", -1.0), Candidate(" a", -3.0)), ())
