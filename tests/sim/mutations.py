"""Rules of the broker, each turned off alone: the simulator must notice every one of them.

A mutation is a function that takes a MonkeyPatch. CAUGHT says which rule is seen broken, and a seed that shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidelog.broker.partition import Partition
from tidelog.broker.replicas import Replicas
from tidelog.controller.elections import Election
from tidelog.controller.image import NO_LEADER
from tidelog.lab.checkers import (
    AcknowledgedIsNeverLost,
    ConsumedNeverDisappears,
    HighWatermarkNeverFalls,
    OnceAndInOrder,
    ReplicasAgree,
    Rule,
)
from tidelog.log.producers import ProducerState
from tidelog.log.trimming import truncate_to
from tidelog.replication.leader import Leader

Mutation = Callable[[pytest.MonkeyPatch], None]


def ack_before_hw(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "is_committed", lambda self, offset: True)


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
    patch.setattr("tidelog.broker.handlers.fetch._diverging_epoch", lambda partition, item: None)


def elect_outside_the_isr(patch: pytest.MonkeyPatch) -> None:
    def elect(leader: int, isr: Any, replicas: Any, is_online: Any, has_bounced: Any, unclean: bool) -> Election:
        online = tuple(filter(is_online, replicas))
        if not online:
            return Election(NO_LEADER, tuple(isr))
        return Election(leader if leader in online else online[-1], online)

    patch.setattr("tidelog.controller.turn.elect", elect)


def write_duplicates(patch: pytest.MonkeyPatch) -> None:
    """A batch that comes again is taken for new."""
    patch.setattr(ProducerState, "duplicate_of", lambda self, header: None)
    patch.setattr("tidelog.log.producers._check_sequence", lambda header, state: None)


def read_past_hw(patch: pytest.MonkeyPatch) -> None:
    """Consumers are given all that is there."""
    patch.setattr("tidelog.broker.handlers.fetch._Fetch._end", lambda self, partition: partition.log.log_end_offset)


CAUGHT: dict[Mutation, tuple[int, type[Rule]]] = {
    ack_before_hw: (1, AcknowledgedIsNeverLost),
    truncate_to_hw: (25, ReplicasAgree),
    hw_without_the_pending: (44, ConsumedNeverDisappears),
    hw_of_the_leader_alone: (5, ConsumedNeverDisappears),
    hw_of_a_new_leader_is_its_end: (6, ReplicasAgree),
    forget_hw_with_each_isr: (20, HighWatermarkNeverFalls),
    join_at_once: (4, ReplicasAgree),
    no_divergence: (4, ReplicasAgree),
    elect_outside_the_isr: (6, ConsumedNeverDisappears),
    write_duplicates: (0, OnceAndInOrder),
    read_past_hw: (5, ConsumedNeverDisappears),
}
"""The first seed from 0 on that shows it, and the rule that it breaks."""
