"""Rules of the broker, each turned off alone: the simulator must notice every one of them.

A mutation is a function that takes a MonkeyPatch. CAUGHT says which rule is seen broken, and a seed that shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any

import pytest

from tests.kits.brokerkit import say_session_is_current
from tests.sim.client_mutations import SEEN_BY_CLIENTS
from tests.sim.edge_mutations import SEEN_IN_SEARCH
from tidelog.broker.handlers.fetch import _Fetch
from tidelog.broker.partition import Partition, RequestError
from tidelog.broker.replicas import Replicas
from tidelog.broker.write_path import Written
from tidelog.controller.elections import Candidates, Election
from tidelog.controller.image import NO_LEADER, PartitionState
from tidelog.controller.turn import Turn
from tidelog.errors import ErrorCode
from tidelog.lab.checkers import (
    AcknowledgedIsNeverLost,
    ConsumedNeverDisappears,
    HighWatermarkNeverFalls,
    HighWatermarkWithinLog,
    InSyncHasAllCommitted,
    NoTideWithoutSession,
    OnceAndInOrder,
    OneLeaderPerEpoch,
    ReplicasAgree,
)
from tidelog.lab.healing_rules import InSyncInTime
from tidelog.lab.plans import Plan, plan_of
from tidelog.lab.rules import Rule
from tidelog.lab.search import THE_RUN_ITSELF, run
from tidelog.log.epochs import LeaderEpochCache
from tidelog.log.log import Log
from tidelog.log.producer_state import ProducerState
from tidelog.log.trimming import truncate_to
from tidelog.replication.leader import Leader

Mutation = Callable[[pytest.MonkeyPatch], None]
_TRIES = 12


def ack_before_hw(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "is_committed", lambda self, offset: True)
    patch.setattr(Written, "is_committed", True)


def truncate_to_hw(patch: pytest.MonkeyPatch) -> None:
    follow = Replicas._follow

    async def cut_and_follow(self: Replicas, partition: Partition, state: Any, is_new_term: bool) -> None:
        if is_new_term:
            partition.leader = None
            await self._fetchers.release(partition)
            await truncate_to(partition.log, partition.log.high_watermark)
        await follow(self, partition, state, is_new_term)

    patch.setattr(Replicas, "_follow", cut_and_follow)


def hw_without_the_pending(patch: pytest.MonkeyPatch) -> None:
    """A follower that is about to join does not count until it has."""
    patch.setattr(Leader, "maximal_isr", property(lambda self: self.isr))
    patch.setattr(Leader, "_is_about_to_join", lambda self, remote, now_ms: False)


def hw_of_the_leader_alone(patch: pytest.MonkeyPatch) -> None:
    def advance(self: Leader, now_ms: int) -> bool:
        rose = self.log_end_offset > self.high_watermark
        self.high_watermark = max(self.high_watermark, self.log_end_offset)
        return rose

    patch.setattr(Leader, "advance", advance)


def hw_of_a_new_leader_is_its_end(patch: pytest.MonkeyPatch) -> None:
    begin = Leader.__init__

    def begin_at_the_end(self: Leader, *facts: Any, **more: Any) -> None:
        begin(self, *facts, **more)
        self.high_watermark = self.log_end_offset

    patch.setattr(Leader, "__init__", begin_at_the_end)


def forget_hw_with_each_isr(patch: pytest.MonkeyPatch) -> None:
    change = Leader.isr_changed

    def change_and_forget(self: Leader, *facts: Any, **more: Any) -> bool:
        self.high_watermark = 0
        return change(self, *facts, **more)

    patch.setattr(Leader, "isr_changed", change_and_forget)


def join_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "_may_join", lambda self, remote: remote.is_alive)


def no_divergence(patch: pytest.MonkeyPatch) -> None:
    """The leader never tells where logs part."""
    patch.setattr("tidelog.broker.fetch_reading._diverging_epoch", lambda partition, item: None)


def elect_outside_the_isr(patch: pytest.MonkeyPatch) -> None:
    def elect(state: PartitionState, candidates: Candidates, unclean: bool, *, at_once: bool) -> Election:
        online = tuple(filter(candidates.is_online, candidates.replicas))
        if not online:
            return Election(NO_LEADER, state.isr)
        return Election(state.leader if state.leader in online else online[-1], online)

    patch.setattr("tidelog.controller.turn.elect", elect)


def elections_keep_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """The controller gives a partition to another leader and does not begin another epoch (S4.1)."""
    write = Turn.write

    def write_the_old_epoch(self: Turn, topic: Any, partition: Any, changed: PartitionState, **more: Any) -> Any:
        known = topic.states.get(partition.partition)
        epoch = changed.leader_epoch if known is None else known.leader_epoch
        return write(self, topic, partition, changed._replace(leader_epoch=epoch), **more)

    patch.setattr(Turn, "write", write_the_old_epoch)


def write_duplicates(patch: pytest.MonkeyPatch) -> None:
    """A batch that comes again is taken for new."""
    patch.setattr(ProducerState, "duplicate_of", lambda self, header: None)
    patch.setattr("tidelog.log.producers._check_sequence", lambda header, state: None)


def read_past_hw(patch: pytest.MonkeyPatch) -> None:
    """Consumers are given all that is there."""
    patch.setattr(
        "tidelog.broker.fetch_answer.FetchAnswer.end_of", lambda self, partition: partition.log.log_end_offset
    )


def hw_over_the_smaller_isr(patch: pytest.MonkeyPatch) -> None:
    """While one is to leave, it counts no more: the controller may yet elect it (edge case 7)."""
    patch.setattr(
        Leader, "maximal_isr", property(lambda self: self.isr if self.pending_isr is None else self.pending_isr)
    )


def hw_without_those_not_heard_of(patch: pytest.MonkeyPatch) -> None:
    """HW goes by those who have fetched in this term, and does not wait for the others (edge case 5)."""
    advance = Leader.advance

    def advance_by_the_known(self: Leader, now_ms: int) -> bool:
        everybody = self.remotes
        self.remotes = {one: remote for one, remote in everybody.items() if remote.log_end_offset >= 0}
        try:
            return advance(self, now_ms)
        finally:
            self.remotes = everybody

    patch.setattr(Leader, "advance", advance_by_the_known)


def join_at_hw(patch: pytest.MonkeyPatch) -> None:
    """The start of the term need not be reached (edge case 6)."""
    patch.setattr(
        Leader,
        "_may_join",
        lambda self, remote: remote.is_alive and remote.log_end_offset >= self.high_watermark,
    )


def follower_hw_uncapped(patch: pytest.MonkeyPatch) -> None:
    """As the leader said it, whatever is here."""
    patch.setattr("tidelog.broker.partition.follower_high_watermark", lambda told, log_end_offset: told)
    patch.setattr(Log, "high_watermark", property(lambda self: self._high_watermark, _set_high_watermark))


def _set_high_watermark(log: Log, offset: int) -> None:
    log._high_watermark = offset


def diverging_fetches_acknowledge(patch: pytest.MonkeyPatch) -> None:
    """What a follower asks for counts, even if its log is another one up to there (S2.5)."""
    hear = _Fetch._hear_follower

    def hear_all(self: _Fetch) -> None:
        sources = self._answer.sources
        self._answer.sources = {item: source._replace(diverges=False) for item, source in sources.items()}
        hear(self)

    patch.setattr(_Fetch, "_hear_follower", hear_all)


def keep_epochs_at_truncation(patch: pytest.MonkeyPatch) -> None:
    """A term whose records are gone stays known (edge case 10)."""
    patch.setattr(LeaderEpochCache, "truncate_from_end", lambda self, offset: False)


def forget_epochs_at_truncation(patch: pytest.MonkeyPatch) -> None:
    """A log that was cut knows of no term any more."""
    patch.setattr(LeaderEpochCache, "truncate_from_end", lambda self, offset: self.clear())


def empty_terms_not_recorded(patch: pytest.MonkeyPatch) -> None:
    """A term is known by its first record only (edge case 3)."""
    patch.setattr(Log, "begin_epoch", lambda self, epoch: None)


def no_matched_epoch(patch: pytest.MonkeyPatch) -> None:
    """The answer has the epoch that was asked for, not the one whose end it tells (edge case 2)."""
    find = LeaderEpochCache.end_offset_for

    def find_only_the_end(self: LeaderEpochCache, epoch: int, log_end_offset: int) -> tuple[int, int]:
        found, end_offset = find(self, epoch, log_end_offset)
        return (epoch if found >= 0 else found), end_offset

    patch.setattr(LeaderEpochCache, "end_offset_for", find_only_the_end)


def no_epoch_fencing(patch: pytest.MonkeyPatch) -> None:
    """Fetches, questions for the end of an epoch and for another ISR are taken in any term (edge case 4)."""

    def leader_for_anybody(self: Partition, current_leader_epoch: int) -> Leader:
        if self.leader is None:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.leader

    patch.setattr(Partition, "leader_for", leader_for_anybody)
    patch.setattr("tidelog.controller.isr.judge", lambda *facts, **more: ErrorCode.NONE)


def lead_without_session(patch: pytest.MonkeyPatch) -> None:
    """A broker whose session is over leads on, until a controller tells it otherwise."""
    say_session_is_current(patch, lambda: True)
    patch.setattr(Replicas, "resign", lambda self: None)


CAUGHT: dict[Mutation, tuple[int, type[Rule] | None]] = {
    ack_before_hw: (2, AcknowledgedIsNeverLost),
    truncate_to_hw: (4, InSyncHasAllCommitted),
    hw_of_the_leader_alone: (2, ReplicasAgree),
    hw_of_a_new_leader_is_its_end: (73, ReplicasAgree),
    hw_over_the_smaller_isr: (4, InSyncHasAllCommitted),
    hw_without_those_not_heard_of: (0, InSyncHasAllCommitted),
    diverging_fetches_acknowledge: (2, InSyncHasAllCommitted),
    empty_terms_not_recorded: (61, InSyncInTime),
    no_matched_epoch: (22, ReplicasAgree),
    no_epoch_fencing: (350, InSyncHasAllCommitted),
    keep_epochs_at_truncation: (10, None),
    forget_epochs_at_truncation: (10, ReplicasAgree),
    forget_hw_with_each_isr: (55, HighWatermarkNeverFalls),
    hw_without_the_pending: (63, InSyncHasAllCommitted),
    follower_hw_uncapped: (0, HighWatermarkWithinLog),
    join_at_once: (54, ConsumedNeverDisappears),
    join_at_hw: (26, InSyncHasAllCommitted),
    no_divergence: (2, ReplicasAgree),
    elect_outside_the_isr: (4, ConsumedNeverDisappears),
    lead_without_session: (25, NoTideWithoutSession),
    elections_keep_the_epoch: (0, OneLeaderPerEpoch),
    write_duplicates: (0, OnceAndInOrder),
    read_past_hw: (4, ConsumedNeverDisappears),
    **SEEN_BY_CLIENTS,
    **SEEN_IN_SEARCH,
}
"""A seed that shows it, and the rule that it breaks; None if the cluster does not come to rest."""


def seeds_to_try(mutation: Mutation) -> Iterator[int]:
    """The recorded seed and the next ones of its kind.

    A seed is another run after any change to a broker: what it showed, one of its kind still has to show.
    """
    recorded, _ = CAUGHT[mutation]
    kind = _kind(plan_of(recorded))
    return islice((seed for seed in count(recorded) if _kind(plan_of(seed)) == kind), _TRIES)


def _kind(plan: Plan) -> object:
    """The ambush that is laid; if none is, what is there to go wrong."""
    return plan.ambush or (plan.sides, plan.members > 0, plan.beyond)


def is_shown(mutation: Mutation, seed: int) -> bool:
    """Whether the mutation's rule breaks in this run."""
    _, rule = CAUGHT[mutation]
    with pytest.MonkeyPatch.context() as patch:
        mutation(patch)
        broken = run(seed, rules=() if rule is None else (rule,)).broken
    return broken == (THE_RUN_ITSELF if rule is None else rule.name)


def table() -> list[str]:
    """As docs/SIMULATOR.md has it."""
    rows = ["| Turned off | Seed | What breaks |", "|---|---|---|"]
    for mutation, (seed, rule) in CAUGHT.items():
        what = "the cluster does not come to rest" if rule is None else rule.name
        rows.append(f"| {mutation.__name__.replace('_', ' ')} | {seed} | {what} |")
    return rows
