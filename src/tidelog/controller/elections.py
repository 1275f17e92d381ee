"""Who leads a partition (S6).

One rule for every occasion: brokers died, came or bounced, a log directory failed, a controller took over. Given who
is in sync, who can be reached and who may have lost records, it says who leads from now on and what the ISR is.
Asked again with its own answer it gives the same one, so it may be asked as often as one likes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tidelog.controller.image import NO_LEADER, PartitionState
from tidelog.controller.log_ends import LogEnd
from tidelog.types import BrokerId

_SOMETHING = LogEnd(0, 1)
_UNTOLD = LogEnd(-1, -1)
_EMPTY, _UNKNOWN, _WITH_RECORDS = 0, 1, 2


class Election(NamedTuple):
    leader: BrokerId
    isr: tuple[BrokerId, ...]
    is_unclean: bool = False
    """Committed records may be lost: the leader was not in sync, or may have lost what it had (S6.2)."""
    unheard: tuple[BrokerId, ...] = ()
    """Replicas that have to tell where their logs end before one of them can be elected."""


class _Fullness(NamedTuple):
    """What a replica may bring into an election. The greatest leads, but see `Candidates.fullest`."""

    kind: int
    is_member: bool
    end: LogEnd


class Candidates(NamedTuple):
    """What the controller knows of a partition's replicas."""

    replicas: Sequence[BrokerId]
    is_online: Callable[[BrokerId], bool]
    has_lost: Callable[[BrokerId], bool]
    """Whether this member of ISR or ELR may have lost records since they were written."""
    log_ends: Mapping[BrokerId, LogEnd] = {}
    """Where the logs end of those replicas that have answered."""
    is_surely_there: Callable[[BrokerId], bool] = lambda member: True
    """Whether this member is known not to be in a log directory that failed."""
    cannot_tell: Callable[[BrokerId], bool] = lambda replica: False
    """Whether this replica was asked for long and could not tell where its log ends."""

    def is_intact(self, member: BrokerId) -> bool:
        return self.is_online(member) and not self.has_lost(member)

    def first(self, among: Sequence[BrokerId]) -> BrokerId:
        """In the order of the replicas (S6.1). An ISR member that is not a replica should not be; it comes last."""
        return next((replica for replica in self.replicas if replica in among), among[0])

    def are_empty(self, members: Sequence[BrokerId]) -> bool:
        """All of them have told that they have no record at all, as after the loss of their log directories."""
        return all(self.log_ends.get(member, _SOMETHING).offset <= 0 for member in members)

    def fullest(self, among: Sequence[BrokerId], members: Sequence[BrokerId]) -> BrokerId:
        """The member with the greatest (last epoch, log end), if one has records; of equals the first.

        Another replica may have led in between, and have a later epoch without what was committed. Only if it ends
        further in the same epoch it has all that the member has, and more: members may have new disks. One that has
        not told may have anything, so it comes before those that have told that they have nothing; one that cannot
        tell comes last.
        """
        fullness = {broker: self._fullness(broker, broker in members) for broker in among}
        most = max(fullness.values())
        if most.kind == _WITH_RECORDS:
            same_epoch = [other for other in fullness.values() if other.end.last_epoch == most.end.last_epoch]
            most = max(same_epoch, key=lambda other: (other.end.offset, other.is_member))
        return self.first([broker for broker in among if fullness[broker] == most])

    def _fullness(self, broker: BrokerId, is_member: bool) -> _Fullness:
        end = self.log_ends.get(broker, _UNTOLD)
        kind = _UNKNOWN if end is _UNTOLD and not self.cannot_tell(broker) else _EMPTY
        return _Fullness(_WITH_RECORDS if end.offset > 0 else kind, is_member, end)


def first_leader(replicas: Sequence[BrokerId], is_online: Callable[[BrokerId], bool]) -> Election | None:
    """For a new partition: all replicas that can be reached are in sync, being empty. None if there is none."""
    online = tuple(filter(is_online, replicas))
    return Election(online[0], online) if online else None


def elect(state: PartitionState, candidates: Candidates, unclean: bool, *, at_once: bool = False) -> Election:
    """The leader stays if it can; else it is the first ISR member, in the order of the replicas, that is intact.

    A member that may have lost records leaves an ISR that has an intact member, and comes back by fetching. If there is
    none, one of the ELR leads. While no intact member of either can be reached both stay as they were recorded: each of
    them may be the one that has every committed record. If all came back and none is intact, the one that kept most
    leads, or a living replica that has all of that and more. If every member has an empty log, as with new disks, the
    other replicas are waited for too, and the one of them that has most leads. A replica outside of both that cannot
    tell where its log ends (its log cannot be made, say) is not waited for: it counts as an empty one.

    If unclean elections are allowed, no member is waited for: the replica that has most leads, as soon as all that live
    have told what they have, or cannot. An operator who wants it `at_once` gets the best of what is known.

    An intact member on a broker with a failed log directory counts when it has said that its log is there: an ISR that
    shrinks to members without a log has no one left that can lead, while one that has every record is out of it.
    """
    leader = state.leader
    for members in (state.isr, state.elr):
        intact = tuple(member for member in members if candidates.is_intact(member))
        if not intact:
            continue
        able = intact if unclean else tuple(filter(candidates.is_surely_there, intact))
        if able or (leader in intact and intact == state.isr):
            return Election(leader if leader in intact else candidates.first(able), intact)
        return Election(NO_LEADER, state.isr)
    awaited = list(state.eligible)
    others = [replica for replica in candidates.replicas if replica not in awaited]
    if candidates.are_empty(awaited):
        awaited, others = awaited + others, []
    may_elect = unclean or all(map(candidates.is_online, awaited))
    living = list(filter(candidates.is_online, awaited + others if may_elect else awaited))
    unheard = tuple(replica for replica in living if replica not in candidates.log_ends)
    has_choice = len(living) > 1 or not unclean
    needed = () if unclean else state.eligible
    is_waiting = any(replica in needed or not candidates.cannot_tell(replica) for replica in unheard)
    if may_elect and living and (at_once or not is_waiting or not has_choice):
        chosen = candidates.fullest(living, state.eligible)
        return Election(chosen, (chosen,), is_unclean=True)
    return Election(NO_LEADER, state.isr, unheard=unheard)
