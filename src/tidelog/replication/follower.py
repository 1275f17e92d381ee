"""The follower's rules: what to ask, and what an answer means (S1.5, S2.8, S4)."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.types import Epoch, Offset


class Extent(NamedTuple):
    """Where a log begins and ends."""

    log_start_offset: Offset
    log_end_offset: Offset


def high_watermark(leader_high_watermark: Offset, log_end_offset: Offset) -> Offset:
    """After the append (S2.8): what the leader says, but never more than is here."""
    return min(leader_high_watermark, log_end_offset)


class CutTo(NamedTuple):
    """Drop all from this offset on."""

    offset: Offset


class StartAt(NamedTuple):
    """Drop all there is and begin anew at this offset."""

    offset: Offset


def out_of_range(own: Extent, leader: Extent) -> CutTo | StartAt | None:
    """The leader does not have the offset that was asked for (S1.5).

    Past its end: this log has what was never committed; cut to it (edge case 13). Before its start: what is missing
    will never come; begin where the leader begins. In between: it moved while the answer was under way; ask again.
    """
    if own.log_end_offset > leader.log_end_offset:
        return CutTo(leader.log_end_offset)
    if own.log_end_offset < leader.log_start_offset:
        return StartAt(leader.log_start_offset)
    return None


class EpochAnswer(NamedTuple):
    """What a leader answers to OffsetsForLeaderEpoch, or with a diverging epoch in a fetch."""

    epoch: Epoch
    end_offset: Offset

    @property
    def is_unknown(self) -> bool:
        """The leader knows nothing of the epoch: only a follower without any may then go by its HW (S4.7)."""
        return self.end_offset < 0
