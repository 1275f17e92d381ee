"""The leader's view of a partition, rule by rule and step by step (S2, S3)."""

from __future__ import annotations

import pytest

from tidelog.replication.follower import high_watermark
from tidelog.replication.leader import UNKNOWN_OFFSET, FollowerFetch, Leader
from tidelog.types import NO_EPOCH

LAG_MS = 10_000


def leader(
    isr: list[int], *, replicas: list[int] | None = None, end: int = 10, hw: int = 4, now_ms: int = 0, min_isr: int = 1
) -> Leader:
    return Leader(
        1, 7, replicas or [1, 2, 3], isr, end, hw, now_ms=now_ms, max_lag_ms=LAG_MS, min_insync_replicas=min_isr
    )


def fetch(one: Leader, follower: int, offset: int, now_ms: int = 0, start: int = 0) -> bool:
    return one.follower_fetched(FollowerFetch(follower, offset, start), now_ms)


# Walk-throughs, value by value


class Follower:
    """A follower's log end and high watermark, as S2.8 moves them."""

    def __init__(self, end: int = 0) -> None:
        self.end = end
        self.hw = 0

    def answered(self, log_end: int, leader_hw: int) -> None:
        self.end = log_end
        self.hw = high_watermark(leader_hw, self.end)


def test_two_replicas_one_record_takes_two_rounds():
    """S2.9 and S2.10: leader (LEO, HW, remote LEO) and follower (LEO, HW) after each step."""
    one, other = leader([1, 2], replicas=[1, 2], end=0, hw=0), Follower()
    fetch(one, 2, other.end)
    assert (one.log_end_offset, one.high_watermark, one.remotes[2].log_end_offset) == (0, 0, 0)
    one.appended(1)
    assert (one.log_end_offset, one.high_watermark, one.remotes[2].log_end_offset) == (1, 0, 0)
    other.answered(1, one.high_watermark)
    assert (other.end, other.hw) == (1, 0)
    assert fetch(one, 2, other.end)
    assert (one.log_end_offset, one.high_watermark, one.remotes[2].log_end_offset) == (1, 1, 1)
    other.answered(1, one.high_watermark)
    assert (other.end, other.hw) == (1, 1)


def test_three_replicas_hw_waits_for_the_slower_one():
    one = leader([1, 2, 3], end=0, hw=0)
    fetch(one, 2, 0)
    fetch(one, 3, 0)
    one.appended(5)
    assert not fetch(one, 2, 5)
    assert one.high_watermark == 0
    assert fetch(one, 3, 3)
    assert one.high_watermark == 3
    assert fetch(one, 3, 5)
    assert one.high_watermark == 5


# The four occasions (S2.7)


def test_on_becoming_leader_nothing_is_known_of_the_others():
    one = leader([1, 2], replicas=[1, 2])
    assert one.remotes[2].log_end_offset == UNKNOWN_OFFSET
    assert not one.advance(0)
    assert one.high_watermark == 4


def test_a_leader_is_followed_when_each_member_of_the_isr_has_fetched_in_its_term():
    one = leader([1, 2, 3])
    assert not one.is_followed
    fetch(one, 2, 0)
    assert not one.is_followed
    fetch(one, 3, 0)
    assert one.is_followed
    one.isr_changed([1], now_ms=0)
    assert one.is_followed
    assert leader([1]).is_followed


def test_alone_in_the_isr_all_that_is_written_is_committed():
    one = leader([1])
    assert one.advance(0)
    assert one.high_watermark == 10
    assert one.appended(12)
    assert one.high_watermark == 12
    assert not one.appended(12)


def test_when_the_isr_shrinks():
    one = leader([1, 2, 3])
    fetch(one, 2, 9)
    assert one.isr_changed([1, 2])
    assert one.high_watermark == 9
    assert one.isr_changed([1])
    assert one.high_watermark == 10


def test_hw_never_falls():
    one = leader([1])
    one.appended(12)
    fetch(one, 2, 5)
    assert not one.isr_changed([1, 2])
    assert one.high_watermark == 12


def test_edge_05_only_fetches_of_this_term_count():
    one = leader([1, 2], replicas=[1, 2])
    assert not one.appended(20)
    assert fetch(one, 2, 15)
    assert one.high_watermark == 15


def test_edge_08_a_fetch_of_an_earlier_life_that_comes_late_counts_for_nothing():
    one = leader([1, 2, 3])
    for follower, offset, life in ((3, 10, 5), (2, 6, 9), (2, 10, 8)):
        one.follower_fetched(FollowerFetch(follower, offset, 0, life), 0)
    assert (one.remotes[2].log_end_offset, one.high_watermark) == (6, 6)
    one.follower_fetched(FollowerFetch(2, 10, 0, 9), 0)
    assert one.high_watermark == 10


def test_edge_34_a_late_fetch_of_the_same_life_does_not_take_a_follower_back():
    """Seed 996: bytes of a closed connection. The follower had no news, so it never told its position again."""
    one = leader([1, 2, 3])
    for offset, now_ms in ((4, 100), (10, 200), (4, 300)):
        one.follower_fetched(FollowerFetch(2, offset, 0, 9), now_ms)
    assert (one.remotes[2].log_end_offset, one.remotes[2].last_fetch_ms) == (10, 200)
    one.follower_fetched(FollowerFetch(2, 4, 0, 10), 400)
    assert one.remotes[2].log_end_offset == 4, "a new life may have lost something"


def test_a_late_fetch_of_the_same_life_does_not_take_a_log_start_back():
    """It has the present position, and was sent before records were deleted. A new life may have forgotten them."""
    one = leader([1, 2, 3])
    for log_start, life in ((0, 9), (4, 9), (0, 9)):
        one.follower_fetched(FollowerFetch(2, 10, log_start, life), 0)
    assert one.remotes[2].log_start_offset == 4
    one.follower_fetched(FollowerFetch(2, 10, 0, 10), 0)
    assert one.remotes[2].log_start_offset == 0


@pytest.mark.parametrize("epoch", [NO_EPOCH, 9])
def test_a_follower_that_cannot_tell_its_life_is_believed(epoch):
    one = leader([1, 2, 3])
    for offset in (10, 4):
        one.follower_fetched(FollowerFetch(2, offset, 0, epoch), 0)
    assert one.remotes[2].log_end_offset == (4 if epoch == NO_EPOCH else 10)


def test_a_stranger_moves_nothing():
    one = leader([1, 2], replicas=[1, 2])
    assert not fetch(one, 9, 10)
    assert 9 not in one.remotes


# Who counts (S2.6)


def test_one_that_is_caught_up_and_may_join_holds_hw_back():
    one = leader([1], end=10, hw=10)
    fetch(one, 2, 10, now_ms=100)
    one.appended(11, 101)
    assert one.high_watermark == 10, "2 may join the ISR at 10, so 11 is not committed yet"
    assert fetch(one, 2, 11, now_ms=102)
    assert one.high_watermark == 11


def test_one_that_is_gone_does_not():
    one = leader([1], end=10, hw=10)
    fetch(one, 2, 10, now_ms=100)
    one.appended(11, 101)
    assert one.brokers_changed([1, 3], 102)
    assert one.high_watermark == 11
    assert one.grown_isr(2) is None
    one.isr_changed([1], [1, 2, 3, 4], 103)
    assert not one.remotes[4].is_alive, "nor was this one ever heard of"
    one.brokers_changed([1, 2, 3], 104)
    fetch(one, 2, 11, now_ms=105)
    assert one.grown_isr(2) == (1, 2)


def test_one_that_fell_behind_for_too_long_does_not():
    one = leader([1], end=10, hw=10)
    fetch(one, 2, 10, now_ms=100)
    one.appended(11, 101)
    assert one.advance(100 + LAG_MS + 1)
    assert one.high_watermark == 11


def test_one_that_is_far_behind_does_not():
    one = leader([1], end=10, hw=10)
    fetch(one, 2, 3, now_ms=100)
    assert one.appended(11, 101)
    assert one.high_watermark == 11


def test_hw_stays_while_the_isr_is_below_min_insync_replicas():
    one = leader([1], min_isr=2)
    assert not one.appended(12)
    assert one.high_watermark == 4
    fetch(one, 2, 12)
    assert one.isr_changed([1, 2])
    assert one.high_watermark == 12


@pytest.mark.parametrize(
    ("replicas", "isr", "min_isr", "enough"),
    [
        ([1], [1], 1, True),
        ([1], [1], 2, True),  # not more than there are
        ([1, 2, 3], [1], 2, False),
        ([1, 2, 3], [1, 2], 2, True),
        ([1, 2, 3], [1, 2], 3, False),
        ([1, 2], [1, 2], 3, True),
    ],
)
def test_enough_replicas_for_acks_all(replicas: list[int], isr: list[int], min_isr: int, enough: bool):
    assert leader(isr, replicas=replicas, min_isr=min_isr).has_enough_replicas() is enough


# A change that is not confirmed (S3.4)


def test_edge_07_while_a_change_is_pending_the_larger_set_counts():
    one = leader([1, 2], end=10, hw=10)
    fetch(one, 3, 10)
    one.isr_asked_for([1, 2, 3])
    later_ms = LAG_MS + 1
    one.appended(12, later_ms)
    assert not fetch(one, 2, 12, later_ms)
    assert one.high_watermark == 10, "3 may be in the ISR by now, though it has fallen behind for too long since"
    assert fetch(one, 3, 11, later_ms)
    assert one.high_watermark == 11


def test_edge_07_a_pending_shrink_counts_only_when_confirmed():
    one = leader([1, 2], replicas=[1, 2], end=10, hw=10, now_ms=0)
    fetch(one, 2, 10)
    one.appended(12)
    shrunk = one.shrunk_isr(LAG_MS + 1)
    assert shrunk == (1,)
    one.isr_asked_for(shrunk)
    assert not one.advance(LAG_MS + 1)
    assert one.high_watermark == 10
    assert one.isr_changed([1], now_ms=LAG_MS + 1)
    assert one.high_watermark == 12


def test_a_refused_change_is_as_if_never_asked_for():
    one = leader([1, 2], end=10, hw=10)
    fetch(one, 3, 10)
    one.isr_asked_for([1, 2, 3])
    one.isr_refused()
    assert one.maximal_isr == (1, 2)
    assert one.grown_isr(3) == (1, 2, 3)


# Joining and leaving (S3.1)


def test_edge_06_to_join_a_follower_must_reach_the_start_of_the_epoch_too():
    one = leader([1], end=10, hw=4)  # the term starts at 10
    fetch(one, 2, 9)
    assert one.grown_isr(2) is None, "it has the HW, but not yet the start of this term"
    fetch(one, 2, 10)
    assert one.grown_isr(2) == (1, 2)


def test_one_change_at_a_time():
    one = leader([1], end=0, hw=0)
    fetch(one, 2, 0)
    fetch(one, 3, 0)
    one.isr_asked_for([1, 2])
    assert one.grown_isr(3) is None
    assert one.shrunk_isr(LAG_MS * 5) is None


def test_members_and_strangers_do_not_join():
    one = leader([1, 2], end=0, hw=0)
    fetch(one, 2, 0)
    assert one.grown_isr(2) is None
    assert one.grown_isr(1) is None
    assert one.grown_isr(9) is None


@pytest.mark.parametrize(
    ("fetches", "end", "at_ms", "shrunk"),
    [
        # at its log end: the number of records behind does not matter, nor the time
        ([(0, 10)], 10, LAG_MS * 9, None),
        # asked at the end it then had; within the lag
        ([(0, 10)], 20, LAG_MS, None),
        ([(0, 10)], 20, LAG_MS + 1, (1,)),
        # fetches at the end that the leader has just then; more has come since
        ([(0, 10), (9_000, 20), (18_000, 30)], 40, 19_000, None),
        # never caught up since it was given the benefit of the doubt
        ([(0, 1), (9_000, 2)], 20, LAG_MS + 1, (1,)),
        # dead: no fetch at all
        ([], 20, LAG_MS + 1, (1,)),
    ],
)
def test_shrinking(fetches: list[tuple[int, int]], end: int, at_ms: int, shrunk: tuple[int, ...] | None):
    one = leader([1, 2], replicas=[1, 2], end=10, hw=0)
    for at, offset in fetches:
        fetch(one, 2, offset, now_ms=at)
        one.appended(one.log_end_offset + (10 if one.log_end_offset + 10 <= end else 0), at)
    one.appended(end, at_ms)
    assert one.shrunk_isr(at_ms) == shrunk


def test_a_follower_that_is_never_more_than_one_fetch_behind_stays():
    """Each fetch is at the end that the leader had at the previous one, so then it had caught up with that."""
    one = leader([1, 2], replicas=[1, 2], end=10, hw=0)
    fetch(one, 2, 10, now_ms=0)
    for number in range(1, 5):
        one.appended(10 + 10 * number, 9_000 * number)
        fetch(one, 2, 10 * number, now_ms=9_000 * number)
    assert one.shrunk_isr(27_000 + LAG_MS) is None
    assert one.shrunk_isr(27_000 + LAG_MS + 1) == (1,)


def test_the_leader_never_leaves():
    one = leader([1, 2, 3], end=10, hw=0)
    one.appended(20, 1)
    assert one.shrunk_isr(LAG_MS * 2) == (1,)


def test_a_partition_that_was_idle_gives_its_followers_their_time():
    """A follower asks for an idle partition only once; that it fetches others shows that it has caught up with it."""
    one = leader([1, 2], replicas=[1, 2], end=10, hw=10)
    fetch(one, 2, 10, now_ms=0)
    one.appended(11, now_ms=3_600_000, seen={2: 3_599_900})
    assert one.shrunk_isr(3_600_000) is None
    assert one.shrunk_isr(3_599_900 + LAG_MS) is None
    assert one.shrunk_isr(3_599_900 + LAG_MS + 1) == (1,)


# New replicas, log starts


def test_replicas_come_and_go_with_what_is_known_of_the_others():
    one = leader([1, 2], replicas=[1, 2], end=0, hw=0)
    fetch(one, 2, 0)
    one.isr_changed([1, 2], [1, 2, 3], now_ms=5)
    assert one.remotes[2].log_end_offset == 0
    assert one.remotes[3].log_end_offset == UNKNOWN_OFFSET
    one.isr_changed([1, 2], [1, 2])
    assert 3 not in one.remotes


def test_the_low_watermark_is_the_smallest_living_log_start():
    one = leader([1, 2, 3], end=10, hw=10)
    assert one.low_watermark(7) == UNKNOWN_OFFSET
    fetch(one, 2, 10, start=5)
    fetch(one, 3, 10, start=3)
    assert one.low_watermark(7) == 3
    one.isr_changed([1])
    for alive, expected in (([1, 2], 5), ([1], 7), ([1, 2, 3], 3)):
        one.brokers_changed(alive, 0)
        assert one.low_watermark(7) == expected


def test_a_replica_that_may_be_elected_holds_the_low_watermark_back_though_it_is_not_alive() -> None:
    one = leader([1, 2, 3], end=10, hw=10)
    fetch(one, 2, 10, start=5)
    fetch(one, 3, 10, start=3)
    one.brokers_changed([1], 0)
    assert one.low_watermark(7) == 3
    one.isr_changed([1, 2])
    assert one.low_watermark(7) == 5
    one.isr_changed([1], elr=[3])
    assert one.low_watermark(7) == 3
    one.isr_changed([1])
    one.isr_asked_for([1, 2])
    assert one.low_watermark(7) == 5, "the controller may have granted it"


def test_a_follower_joins_the_isr_only_with_a_log_start_at_what_was_deleted() -> None:
    """It may lead next, and records whose deletion was acknowledged must not return."""
    one = leader([1], end=10, hw=10)
    fetch(one, 2, 10, start=0)
    assert one.grown_isr(2) == (1, 2)
    one.deletion_acknowledged(4)
    one.deletion_acknowledged(2)
    assert one.grown_isr(2) is None
    fetch(one, 2, 10, start=4)
    assert one.grown_isr(2) == (1, 2)


def test_nothing_is_committed_while_a_replica_outside_the_isr_may_be_elected() -> None:
    """The controller took 2 out of an ISR that was too small with one member (ELR); this leader would need only one."""
    one = leader([1], end=10, hw=4)
    one.elr = (2,)
    assert not one.appended(12)
    assert one.high_watermark == 4
    assert one.isr_changed([1], elr=())
    assert one.high_watermark == 12
