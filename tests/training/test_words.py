import numpy as np

from dg_lsp.training.words import WordHashes, runs, word_hashes


def hashes(text, length):
    return runs(word_hashes(text, WordHashes()), length).tolist()


def test_case_punctuation_and_layout_do_not_count():
    assert hashes("def f(a, b):\n    return A+b", 3) == hashes("DEF f a\tb ... Return a  B", 3)


def test_the_order_of_the_words_counts():
    assert hashes("one two three", 3) != hashes("three two one", 3)
    assert set(hashes("a b c d", 2)).isdisjoint(hashes("b a d c", 2))


def test_there_is_one_run_from_each_word_that_has_enough_after_it():
    assert [len(hashes("a b c d", length)) for length in (1, 3, 4, 5)] == [4, 2, 1, 0]
    assert hashes("", 1) == []


def test_hashes_are_the_same_in_every_process():
    assert word_hashes("return", WordHashes()).tolist() == [166712603271491781]
    known = WordHashes()
    assert np.array_equal(word_hashes("a b a", known), word_hashes("a b a", known))
