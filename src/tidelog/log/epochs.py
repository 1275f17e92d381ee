"""The leader epochs of one log: who led when, told by where each term began (S4.1, S4.2, S4.4).

This is what replicas compare to find where their logs part. It knows nothing of files; the calls that change
it return True when the file is out of date.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from tidelog.types import NO_EPOCH, Epoch, Offset

NO_OFFSET: Offset = -1
UNKNOWN_END: tuple[Epoch, Offset] = (NO_EPOCH, NO_OFFSET)
"""The answer to an epoch that nothing is known about."""


class EpochEntry(NamedTuple):
    """A term and the offset of its first record; the next entry's start is its end."""

    epoch: Epoch
    start_offset: Offset


class TruncationPoint(NamedTuple):
    """Where a follower cuts its log. If that is not final it asks again, with the epoch it then ends in."""

    offset: Offset
    final: bool


class LeaderEpochCache:
    """The known epochs of a log, oldest first.

    Always: epochs and start offsets both strictly rise; `latest_epoch` is the last one's, or -1. The append path
    compares that number and calls `assign` only when a batch has another.
    """

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        self.latest_epoch: Epoch = NO_EPOCH
        self._epochs: list[Epoch] = []
        self._starts: list[Offset] = []
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)

    @property
    def entries(self) -> list[EpochEntry]:
        return list(map(EpochEntry, self._epochs, self._starts))

    def __len__(self) -> int:
        return len(self._epochs)

    # What is known

    def epoch_for_offset(self, offset: Offset) -> Epoch | None:
        """The term in which this offset was or would be written; None before the first known one."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else None

    def end_offset_for(self, epoch: Epoch, log_end_offset: Offset) -> tuple[Epoch, Offset]:
        """The leader's answer to OffsetsForLeaderEpoch: the largest known epoch <= the one asked, and its end.

        Older than all known: the asked epoch and the first start, for its records are gone and what is left
        begins there. Newer than all known, or nothing known: (-1, -1).
        """
        if epoch == NO_EPOCH or epoch > self.latest_epoch:
            return UNKNOWN_END
        if epoch == self.latest_epoch:
            return epoch, log_end_offset
        index = bisect_right(self._epochs, epoch)
        end_offset = self._starts[index]
        return (self._epochs[index - 1] if index else epoch), end_offset

    def truncation_point(
        self, leader_epoch: Epoch, leader_end_offset: Offset, log_end_offset: Offset
    ) -> TruncationPoint:
        """The follower's use of a leader's answer, which knew the epoch (S4.4).

        Past the leader's end of an epoch that is not above ours, nothing can be shared. If the epoch is known here
        too, neither can anything past our own end of it, and that settles it. If not, cut to the end of the next
        lower one and ask again, from there. Without any epochs there is nothing to ask about.
        """
        if leader_end_offset < 0:
            raise ValueError("the leader knew nothing of the epoch it was asked for: there is no point to find")
        shared_end = min(leader_end_offset, log_end_offset)
        epoch, end_offset = self.end_offset_for(min(leader_epoch, self.latest_epoch), log_end_offset)
        if epoch == NO_EPOCH:
            return TruncationPoint(shared_end, final=True)
        return TruncationPoint(min(end_offset, shared_end), final=epoch == leader_epoch)

    # What changes it

    def assign(self, epoch: Epoch, start_offset: Offset) -> bool:
        """A term begins here. True if this is news: then the file has to be written and synced now.

        Entries that start at or after it, or whose epoch is not below it, did not happen and go. A batch without
        an epoch (-1) teaches nothing.
        """
        if epoch < 0:
            return False
        if start_offset < 0:
            raise ValueError(f"epoch {epoch} cannot start at offset {start_offset}")
        if epoch == self.latest_epoch and start_offset >= self._starts[-1]:
            return False
        self._keep(min(bisect_left(self._epochs, epoch), bisect_left(self._starts, start_offset)))
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest_epoch = epoch
        return True

    def truncate_from_end(self, offset: Offset) -> bool:
        """The log now ends here: terms that start at or after it are forgotten.

        To be called for every truncation, also one at or past the log end: a term without records starts exactly
        there, and if it stays the follower asks about it for ever (kafka#9633).
        """
        kept = bisect_left(self._starts, offset)
        if kept == len(self._starts):
            return False
        self._keep(kept)
        return True

    def truncate_from_start(self, offset: Offset) -> bool:
        """The log now starts here: the term that covers it starts here too, and those before it are forgotten."""
        covering = bisect_right(self._starts, offset) - 1
        if covering < 0 or (covering == 0 and self._starts[0] == offset):
            return False
        del self._epochs[:covering]
        del self._starts[:covering]
        self._starts[0] = offset
        return True

    def clear(self) -> bool:
        """All records are gone, and with them their terms."""
        had_entries = bool(self._epochs)
        self._keep(0)
        return had_entries

    def _keep(self, count: int) -> None:
        del self._epochs[count:]
        del self._starts[count:]
        self.latest_epoch = self._epochs[-1] if count else NO_EPOCH
