from dg_lsp.server.session import MAX_REMEMBERED, Acceptance


def test_accepted_parts_of_an_item_are_counted_once():
    acceptance = Acceptance()
    name = acceptance.offer("a😋bc")  # five UTF-16 units
    acceptance.show(name)
    acceptance.show(name)
    acceptance.accept(name, 1)
    acceptance.accept(name, 3)
    acceptance.accept(name, 2)
    assert (acceptance.offered, acceptance.shown, acceptance.accepted, acceptance.chars) == (1, 1, 1, 3)
    acceptance.accept(name)
    acceptance.accept(name, 99)
    assert (acceptance.accepted, acceptance.chars) == (1, 5)


def test_unknown_and_forgotten_items_are_not_counted():
    acceptance = Acceptance()
    old = acceptance.offer("x")
    for _ in range(MAX_REMEMBERED):
        acceptance.offer("y")
    for name in (old, "nonsense", ""):
        acceptance.show(name)
        acceptance.accept(name)
    assert (acceptance.shown, acceptance.accepted, acceptance.chars) == (0, 0, 0)


def test_an_empty_part_is_not_an_acceptance():
    acceptance = Acceptance()
    name = acceptance.offer("x")
    acceptance.accept(name, 0)
    acceptance.accept(name, -3)
    assert acceptance.accepted == 0
