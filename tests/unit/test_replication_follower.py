"""The follower's rules as tables: HW after an append, and offsets that the leader does not have (S1.5, S2.3, S2.8)."""

from __future__ import annotations

import pytest

from tidelog.replication.follower import CutTo, Extent, StartAt, high_watermark, out_of_range


@pytest.mark.parametrize(("leaders_hw", "own_end", "expected"), [(0, 5, 0), (4, 5, 4), (5, 5, 5), (9, 5, 5)])
def test_hw_is_never_above_the_own_log_end(leaders_hw: int, own_end: int, expected: int) -> None:
    assert high_watermark(leaders_hw, own_end) == expected


@pytest.mark.parametrize(
    ("own", "leader", "action"),
    [
        (Extent(0, 12), Extent(0, 10), CutTo(10)),
        (Extent(0, 5), Extent(8, 10), StartAt(8)),
        # The leader has the offset by now: ask again.
        (Extent(0, 10), Extent(0, 10), None),
        (Extent(0, 8), Extent(8, 10), None),
        (Extent(0, 9), Extent(8, 10), None),
    ],
)
def test_an_offset_that_the_leader_does_not_have(own: Extent, leader: Extent, action: CutTo | StartAt | None) -> None:
    assert out_of_range(own, leader) == action
