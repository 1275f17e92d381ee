"""The leader's view of one partition: who has copied what, and so what is committed (S2, S3).

Facts in, decisions out: log ends as they move, fetches as they come, the time as it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.types import NO_EPOCH, BrokerId, Epoch, Offset

UNKNOWN_OFFSET = -1


def _always() -> bool:
    return True


class FollowerFetch(NamedTuple):
    """A valid fetch of a follower: its log ends at `fetch_offset`, so it has all below (S2.5)."""

    follower: BrokerId
    fetch_offset: Offset
    log_start_offset: Offset
    broker_epoch: Epoch = NO_EPOCH


@dataclass(slots=True)
class RemoteReplica:
    """What a leader knows of one follower, from its fetches of this term."""

    log_end_offset: Offset = UNKNOWN_OFFSET
    log_start_offset: Offset = UNKNOWN_OFFSET
    broker_epoch: Epoch = NO_EPOCH
    caught_up_ms: int = 0
    """When it last had all that the leader had at that or at its previous fetch."""
    last_fetch_ms: int = 0
    leader_end_at_last_fetch: Offset = 0
    is_alive: bool = True
    """As far as is known here; one that is not will not join the ISR, and so holds nothing back."""

    def fetched(self, fetch: FollowerFetch, leader_end_offset: Offset, now_ms: int) -> None:
        if fetch.fetch_offset >= leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif fetch.fetch_offset >= self.leader_end_at_last_fetch:
            self.caught_up_ms = max(self.caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = fetch.fetch_offset
        if fetch.broker_epoch == self.broker_epoch != NO_EPOCH:
            # A late fetch may have the present position and a log start of before.
            self.log_start_offset = max(self.log_start_offset, fetch.log_start_offset)
        else:
            self.log_start_offset = fetch.log_start_offset
        self.broker_epoch = fetch.broker_epoch
        self.last_fetch_ms = now_ms
        self.leader_end_at_last_fetch = leader_end_offset

    def is_caught_up(self, leader_end_offset: Offset, now_ms: int, max_lag_ms: int) -> bool:
        return self.log_end_offset == leader_end_offset or now_ms - self.caught_up_ms <= max_lag_ms


class Leader:
    """Always: high_watermark <= log_end_offset; high_watermark never falls within an epoch; the leader is in the ISR.

    While a change of the ISR is not confirmed, the larger of the two sets counts (S3.4).
    """

    def __init__(
        self,
        broker_id: BrokerId,
        epoch: Epoch,
        replicas: Sequence[BrokerId],
        isr: Sequence[BrokerId],
        log_end_offset: Offset,
        high_watermark: Offset,
        *,
        alive: Container[BrokerId] | None = None,
        now_ms: int = 0,
        max_lag_ms: int = 10_000,
        min_insync_replicas: int = 1,
        elr: Sequence[BrokerId] = (),
        log_start_offset: Offset = 0,
    ) -> None:
        assert broker_id in isr, "a leader is always in sync with itself (S3.1)"
        self.epoch = epoch
        self.epoch_start_offset = log_end_offset
        self.replicas = tuple(replicas)
        self.isr = tuple(isr)
        self.pending_isr: tuple[BrokerId, ...] | None = None
        """What the controller was asked for and has not confirmed."""
        self.elr = tuple(elr)
        """Replicas outside the ISR that the controller may elect, because nothing was committed without them. So
        nothing is, until the controller says that they are eligible no more (KIP-966)."""
        self.high_watermark = high_watermark
        self.log_end_offset = log_end_offset
        self.deleted_to = log_start_offset
        """Deletions up to here may have been acknowledged, by this leader or by one before it."""
        self.max_lag_ms = max_lag_ms
        self._min_insync_replicas = min_insync_replicas
        self.needed_replicas = min(min_insync_replicas, len(self.replicas))
        """A partition is not asked for more replicas than it has."""
        self._broker_id = broker_id
        self.remotes: dict[BrokerId, RemoteReplica] = {}
        self.may_commit: Callable[[], bool] = _always
        """Asked before each move of the high watermark: a broker whose session may be over commits nothing."""
        self._alive: Container[BrokerId] = replicas if alive is None else alive
        self._know(replicas, now_ms)

    def _know(self, replicas: Sequence[BrokerId], now_ms: int) -> None:
        """Those in the ISR are given the benefit of the doubt until their first fetch is due."""
        self.remotes = {
            replica: self.remotes.get(replica) or RemoteReplica(caught_up_ms=now_ms if replica in self.isr else 0)
            for replica in replicas
            if replica != self._broker_id
        }
        self._mark_alive()

    def _mark_alive(self) -> None:
        for replica, remote in self.remotes.items():
            remote.is_alive = replica in self._alive

    # The four occasions (S2.7)

    def appended(self, log_end_offset: Offset, now_ms: int = 0, seen: Mapping[BrokerId, int] | None = None) -> bool:
        """True if the high watermark rose. `seen`: when each follower last fetched anything from this broker.

        A follower names only what is new to it, so an idle partition does not hear of its fetches; each of them
        asked for the end of that partition all the same.
        """
        for replica, remote in self.remotes.items():
            if seen and remote.log_end_offset == self.log_end_offset:
                remote.caught_up_ms = max(remote.caught_up_ms, seen.get(replica, 0))
        self.log_end_offset = log_end_offset
        return self.advance(now_ms)

    def follower_fetched(self, fetch: FollowerFetch, now_ms: int) -> bool:
        """Asking for offset N acknowledges all below N (S2.5). True if the high watermark rose.

        A fetch of a life that is over may come late, and its follower may have lost what it had then (edge case 8). In
        one life and one term a follower only goes forward, so a fetch from further back comes late as well: the
        follower has no reason to tell its position again, and would stay behind for ever.
        """
        remote = self.remotes.get(fetch.follower)
        if remote is None or NO_EPOCH < fetch.broker_epoch < remote.broker_epoch:
            return False
        if fetch.broker_epoch == remote.broker_epoch != NO_EPOCH and fetch.fetch_offset < remote.log_end_offset:
            return False
        remote.fetched(fetch, self.log_end_offset, now_ms)
        return self.advance(now_ms)

    def isr_changed(
        self,
        isr: Sequence[BrokerId],
        replicas: Sequence[BrokerId] | None = None,
        now_ms: int = 0,
        elr: Sequence[BrokerId] = (),
    ) -> bool:
        """The controller says who is in sync, and that settles what was asked for. True if the high watermark rose."""
        self.isr, self.elr = tuple(isr), tuple(elr)
        self.pending_isr = None
        if replicas is not None and tuple(replicas) != self.replicas:
            self.replicas = tuple(replicas)
            self.need_replicas(self._min_insync_replicas)
            self._know(self.replicas, now_ms)
        return self.advance(now_ms)

    def brokers_changed(self, alive: Container[BrokerId], now_ms: int) -> bool:
        """Who is alive now. True if the high watermark rose: it waited for one that was about to join, and is gone."""
        self._alive = alive
        self._mark_alive()
        return self.advance(now_ms)

    def advance(self, now_ms: int) -> bool:
        """HW = max(HW, smallest log end over those that count) (S2.6)."""
        if self.elr or len(self.isr) < self.needed_replicas:
            return False
        smallest = self.log_end_offset
        counted = self.maximal_isr
        for replica, remote in self.remotes.items():
            if replica in counted or self._is_about_to_join(remote, now_ms):
                smallest = min(smallest, remote.log_end_offset)
        if smallest <= self.high_watermark or not self.may_commit():
            return False
        self.high_watermark = smallest
        return True

    def _is_about_to_join(self, remote: RemoteReplica, now_ms: int) -> bool:
        """Caught up, and only not yet in the ISR: its log end counts, or it could join with less than is committed."""
        return self._may_join(remote) and remote.is_caught_up(self.log_end_offset, now_ms, self.max_lag_ms)

    # In-sync replicas (S3)

    @property
    def maximal_isr(self) -> tuple[BrokerId, ...]:
        if self.pending_isr is None:
            return self.isr
        return (*self.isr, *(replica for replica in self.pending_isr if replica not in self.isr))

    def need_replicas(self, min_insync_replicas: int) -> None:
        """The topic's setting has changed."""
        self._min_insync_replicas = min_insync_replicas
        self.needed_replicas = min(min_insync_replicas, len(self.replicas))

    @property
    def is_followed(self) -> bool:
        """Every member of the ISR has fetched in this term. So each of them took this replica for the leader then, and
        none had heard of a later one."""
        return all(
            (remote := self.remotes.get(replica)) is not None and remote.log_end_offset != UNKNOWN_OFFSET
            for replica in self.isr
            if replica != self._broker_id
        )

    def has_enough_replicas(self) -> bool:
        """Whether acks=all may be promised (S3.2)."""
        return len(self.isr) >= self.needed_replicas

    def _may_join(self, remote: RemoteReplica) -> bool:
        """It lives, and has reached the HW and the start of this term (edge case 6).

        Its log start has reached what was deleted: a member of the ISR may lead, and deleted records must not return.
        """
        return (
            remote.is_alive
            and remote.log_end_offset >= max(self.high_watermark, self.epoch_start_offset)
            and max(remote.log_start_offset, 0) >= self.deleted_to
        )

    def grown_isr(self, follower: BrokerId) -> tuple[BrokerId, ...] | None:
        """The ISR with this follower, if it may join now; None if not, or if a change is under way already."""
        remote = self.remotes.get(follower)
        if remote is None or self.pending_isr is not None or follower in self.isr or not self._may_join(remote):
            return None
        return (*self.isr, follower)

    def shrunk_isr(self, now_ms: int) -> tuple[BrokerId, ...] | None:
        """The ISR without those that have not caught up for too long; None if there are none."""
        if self.pending_isr is not None:
            return None
        kept = tuple(
            replica
            for replica in self.isr
            if replica == self._broker_id
            or (
                (remote := self.remotes.get(replica)) is not None
                and remote.is_caught_up(self.log_end_offset, now_ms, self.max_lag_ms)
            )
        )
        return kept if len(kept) < len(self.isr) else None

    def isr_asked_for(self, isr: Sequence[BrokerId]) -> None:
        """The controller is being asked; until it answers both sets count (S3.4)."""
        assert self.pending_isr is None, "one change at a time"
        self.pending_isr = tuple(isr)

    def isr_refused(self) -> None:
        """It said no: what was asked for will not be."""
        self.pending_isr = None

    # Log starts (S10.2)

    def low_watermark(self, log_start_offset: Offset) -> Offset:
        """The smallest log start over the living replicas; one that has not told its own holds it back.

        Those that are not alive count too while the controller may elect them as they return.
        """
        electable = (*self.maximal_isr, *self.elr)
        starts = [
            remote.log_start_offset
            for replica, remote in self.remotes.items()
            if remote.is_alive or replica in electable
        ]
        return min([log_start_offset, *starts])

    def deletion_acknowledged(self, offset: Offset) -> None:
        self.deleted_to = max(self.deleted_to, offset)
