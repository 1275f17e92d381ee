"""The leader's view of a partition: what is committed (S2, S3)."""

from __future__ import annotations

import pytest

from tidelog.replication.leader import Leader


def leader(isr: list[int], *, replicas: list[int] | None = None, end: int = 10, hw: int = 4) -> Leader:
    return Leader(1, 7, replicas or [1, 2, 3], isr, end, hw)


def test_alone_in_the_isr_all_that_is_written_is_committed() -> None:
    one = leader([1])
    assert one.high_watermark == 4
    assert one.appended(12)
    assert (one.high_watermark, one.log_end_offset) == (12, 12)
    assert not one.appended(12)


def test_hw_waits_until_every_member_has_fetched_in_this_term() -> None:
    one = leader([1, 2])
    assert not one.appended(12)
    assert one.high_watermark == 4
    one._remote_ends[2] = 11
    assert one.appended(13)
    assert one.high_watermark == 11
    one._remote_ends[2] = 13
    assert one.appended(13)
    assert one.high_watermark == 13


def test_hw_never_falls() -> None:
    one = leader([1])
    one.appended(12)
    one._remote_ends[2] = 5
    assert not one.isr_changed([1, 2])
    assert one.high_watermark == 12
    one._remote_ends.clear()
    assert not one.isr_changed([1, 2, 3])
    assert one.high_watermark == 12


def test_a_smaller_isr_may_raise_hw() -> None:
    one = leader([1, 2, 3])
    one.appended(12)
    one._remote_ends[2] = 9
    assert not one.isr_changed([1, 2, 3])
    assert one.isr_changed([1, 2])
    assert one.high_watermark == 9
    assert one.isr_changed([1])
    assert one.high_watermark == 12


def test_a_member_that_nobody_knows_holds_hw() -> None:
    one = leader([1, 99], replicas=[1, 2])
    assert not one.appended(50)
    assert one.high_watermark == 4


def test_the_term_starts_where_the_log_ended() -> None:
    one = leader([1], end=10)
    one.appended(20)
    assert (one.epoch, one.epoch_start_offset) == (7, 10)


@pytest.mark.parametrize(
    ("isr", "minimum", "expected"),
    [([1], 1, True), ([1], 2, False), ([1, 2], 2, True), ([1, 2], 3, False), ([1, 2, 3], 5, True)],
)
def test_enough_replicas_are_never_more_than_there_are(isr: list[int], minimum: int, expected: bool) -> None:
    assert leader(isr).has_enough_replicas(minimum) is expected


def test_a_leader_is_in_its_isr() -> None:
    with pytest.raises(AssertionError):
        leader([2, 3])
