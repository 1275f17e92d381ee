"""The leader's view of one partition (S2)."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.types import BrokerId, Epoch, Offset

UNKNOWN_OFFSET = -1


class Leader:
    """Who has copied what, and so what is committed.

    Always: high_watermark <= log_end_offset; high_watermark never falls within an epoch.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        epoch: Epoch,
        replicas: Sequence[BrokerId],
        isr: Sequence[BrokerId],
        log_end_offset: Offset,
        high_watermark: Offset,
    ) -> None:
        assert broker_id in isr, "a leader is always in sync with itself (S3.1)"
        self.epoch = epoch
        self.epoch_start_offset = log_end_offset
        self.replicas = tuple(replicas)
        self.isr = tuple(isr)
        self.high_watermark = high_watermark
        self.log_end_offset = log_end_offset
        self._broker_id = broker_id
        self._remote_ends: dict[BrokerId, Offset] = {
            replica: UNKNOWN_OFFSET for replica in replicas if replica != broker_id
        }
        """Where each follower's log ends, as far as its fetches of this term tell (S2.5)."""

    def appended(self, log_end_offset: Offset) -> bool:
        """True if the high watermark rose."""
        self.log_end_offset = log_end_offset
        return self._advance()

    def isr_changed(self, isr: Sequence[BrokerId]) -> bool:
        """The controller says who is in sync. True if the high watermark rose."""
        self.isr = tuple(isr)
        return self._advance()

    def has_enough_replicas(self, min_insync_replicas: int) -> bool:
        """Whether acks=all may be promised (S3.2). A partition is not asked for more replicas than it has."""
        return len(self.isr) >= min(min_insync_replicas, len(self.replicas))

    def _advance(self) -> bool:
        """HW is the smallest log end over the replicas in sync (S2.6); unknown ones hold it where it is."""
        smallest = self.log_end_offset
        for replica in self.isr:
            if replica != self._broker_id:
                smallest = min(smallest, self._remote_ends.get(replica, UNKNOWN_OFFSET))
        if smallest <= self.high_watermark:
            return False
        self.high_watermark = smallest
        return True
