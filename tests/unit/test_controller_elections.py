"""Who leads (S6), as a table."""

from __future__ import annotations

import pytest

from tidelog.controller.elections import Election, elect, first_leader

REPLICAS = (1, 2, 3)


@pytest.mark.parametrize(
    ("leader", "isr", "online", "bounced", "unclean", "elected"),
    [
        # nothing happened
        (1, (1, 2, 3), {1, 2, 3}, set(), False, Election(1, (1, 2, 3))),
        (2, (2, 3), {1, 2, 3}, set(), False, Election(2, (2, 3))),
        # the leader died: the first living ISR member in the order of the replicas, not of the ISR (S6.1)
        (1, (3, 1, 2), {2, 3}, set(), False, Election(2, (3, 2))),
        (1, (1, 3), {2, 3}, set(), False, Election(3, (3,))),
        # a follower died
        (1, (1, 2, 3), {1, 3}, set(), False, Election(1, (1, 3))),
        # nobody of the ISR lives: it stays as it was (S6.2)
        (1, (1,), {2, 3}, set(), False, Election(-1, (1,))),
        (1, (1, 2), {3}, set(), False, Election(-1, (1, 2))),
        (-1, (1, 2), {3}, set(), False, Election(-1, (1, 2))),
        # one of them is back
        (-1, (1,), {1, 2, 3}, {1}, False, Election(1, (1,))),
        (-1, (1, 2), {2}, set(), False, Election(2, (2,))),
        # unclean: the first living replica
        (1, (1,), {2, 3}, set(), True, Election(2, (2,), is_unclean=True)),
        (-1, (1,), set(), set(), True, Election(-1, (1,))),
        # unclean does not matter while a member lives
        (1, (1, 3), {2, 3}, set(), True, Election(3, (3,))),
        # edge case 9: a leader that bounced hands over to a member that did not
        (1, (1, 2), {1, 2}, {1}, False, Election(2, (2,))),
        # and waits for a member that is away: that one has all
        (-1, (1, 2), {1}, {1}, False, Election(-1, (2,))),
        (-1, (2,), {1, 2}, {2}, False, Election(2, (2,))),
        # all members bounced: one must lead
        (1, (2, 1), {1, 2, 3}, {1, 2}, False, Election(1, (1,))),
        # unclean prefers a member that bounced to a stranger
        (-1, (1, 2), {2, 3}, {2}, True, Election(2, (2,), is_unclean=True)),
    ],
)
def test_elect(  # type: ignore[no-untyped-def]
    leader: int, isr: tuple[int, ...], online: set[int], bounced: set[int], unclean: bool, elected: Election
) -> None:
    result = elect(leader, isr, REPLICAS, online.__contains__, bounced.__contains__, unclean)
    assert result == elected
    # Asked again when it is written down, nobody has bounced since, and it stays.
    again = elect(result.leader, result.isr, REPLICAS, online.__contains__, lambda _: False, unclean)
    assert (again.leader, again.isr) == (result.leader, result.isr)


def test_a_new_partition_starts_with_all_that_can_be_reached() -> None:
    assert first_leader((3, 1, 2), {1, 2}.__contains__) == Election(1, (1, 2))
    assert first_leader((3, 1, 2), set().__contains__) is None  # type: ignore[arg-type]
