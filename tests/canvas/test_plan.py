from dg_lsp.canvas.layout import common_prefix_length, token_ids


def test_the_longest_common_prefix():
    assert common_prefix_length(token_ids([1, 2, 3]), token_ids([1, 2, 4])) == 2
    assert common_prefix_length(token_ids([1, 2]), token_ids([1, 2, 3])) == 2
    assert common_prefix_length(token_ids([]), token_ids([1])) == 0
