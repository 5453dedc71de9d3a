from dg_lsp.server.session import MAX_REMEMBERED, Acceptance


def test_unknown_and_forgotten_items_are_not_counted():
    acceptance = Acceptance()
    old = acceptance.offer()
    for _ in range(MAX_REMEMBERED):
        acceptance.offer()
    for name in (old, "nonsense", ""):
        acceptance.record(name, "accepted")
    assert acceptance.counts == {"shown": 0, "accepted": 0}
