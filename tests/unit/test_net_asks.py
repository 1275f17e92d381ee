"""The order in which connections that wait for room get it."""

from __future__ import annotations

from typing import Any

from tidelog.net.asks import Ask, Asks, Kind


class Connection:
    """What an ask needs to know of one."""

    def __init__(self, name: str, held: int = 0) -> None:
        self.name = name
        self.releasable_bytes = held


def ask(asks: Asks, name: str, size: int, held: int = 0, kind: Kind = Kind.MIDDLE) -> Any:
    waiting: Any = Connection(name, held)
    asks.add(Ask(waiting, kind, size, 0))
    return waiting


def served(asks: Asks, largest: Kind = Kind.LARGE) -> str:
    """Serve the next one; who it was."""
    first: Any = asks.first(largest)
    asks.serve(first)
    return str(first.connection.name)


def test_equal_asks_are_served_in_the_order_they_came():
    asks = Asks()
    for name in "abc":
        ask(asks, name, 100)
    assert [served(asks) for _ in "abc"] == ["a", "b", "c"]
    assert asks.first(Kind.LARGE) is None


def test_a_small_ask_passes_large_ones_that_came_before():
    asks = Asks()
    for number in range(20):
        ask(asks, f"large {number}", 1_000_000, kind=Kind.LARGE)
    ask(asks, "small", 100_000, kind=Kind.SHORT)
    assert served(asks) == "small"


def test_a_connection_that_holds_much_waits_for_those_that_hold_little():
    asks = Asks()
    for number in range(20):
        ask(asks, f"greedy {number}", 1000, held=2_000_000)
    ask(asks, "modest", 100_000)
    assert served(asks) == "modest"


def test_small_asks_that_keep_coming_do_not_put_a_large_one_off_for_ever():
    asks = Asks()
    ask(asks, "large", 1_000_000)
    for number in range(10):
        ask(asks, f"small {number}", 10_000)
    order = []
    while "large" not in order:
        order.append(served(asks))
        ask(asks, "another", 10_000)
        assert len(order) < 2_000
    assert len(order) > 500, "each of the others got about as many bytes as the large one wants"


def test_larger_kinds_can_be_left_out():
    asks = Asks()
    for kind in reversed(Kind):
        ask(asks, kind.name, 10, kind=kind)
    assert served(asks, Kind.MIDDLE) == "MIDDLE"
    assert served(asks, Kind.MIDDLE) == "SHORT"
    assert asks.first(Kind.MIDDLE) is None
    assert served(asks) == "LARGE"


def test_who_withdraws_is_passed_over_and_forgotten():
    asks = Asks()
    ask(asks, "first", 10)
    for _ in range(1000):
        asks.withdraw(ask(asks, "gone", 5))
    assert len(asks) == 1
    assert sum(map(len, asks._queues)) < 100
    assert served(asks) == "first"
    assert asks.first(Kind.LARGE) is None
