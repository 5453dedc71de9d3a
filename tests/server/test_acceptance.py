from dg_lsp.server.session import REMEMBERED, Acceptance


def test_whole_items_and_parts_add_up():
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


def test_what_was_never_offered_or_is_long_gone_counts_nothing():
    acceptance = Acceptance()
    old = acceptance.offer("x")
    for _ in range(REMEMBERED):
        acceptance.offer("y")
    for name in (old, "nonsense", ""):
        acceptance.show(name)
        acceptance.accept(name)
    assert (acceptance.shown, acceptance.accepted, acceptance.chars) == (0, 0, 0)


def test_a_part_of_nothing_is_no_acceptance():
    acceptance = Acceptance()
    name = acceptance.offer("x")
    acceptance.accept(name, 0)
    acceptance.accept(name, -3)
    assert acceptance.accepted == 0
