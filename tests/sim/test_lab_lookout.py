"""The lab sees high watermarks and new leaders at the moment they come, and a broken rule there ends the run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.kits.clusterkit import ClusterKit, run
from tidelog.broker.partition import Partition
from tidelog.errors import ErrorCode
from tidelog.lab.loop import SimulationError
from tidelog.lab.rules import BrokenRuleError, Replica, Rule
from tidelog.lab.witness import Witness
from tidelog.types import Offset


def test_the_high_watermark_is_seen_before_the_producer_hears_of_it() -> None:
    seen: list[tuple[int, Offset, Offset]] = []

    def heard(broker: int, partition: Partition, before: Offset) -> None:
        seen.append((broker, before, partition.log.high_watermark))

    async def story(cluster: ClusterKit) -> None:
        cluster.lookout.listen(heard)
        assert await cluster.produce(b"one", acks=-1) == ErrorCode.NONE
        assert (cluster.leader(), 0, 1) in seen
        await cluster.all_in_sync()
        assert {broker for broker, _, now in seen if now == 1} == {1, 2, 3}

    run(story)


def test_a_new_leader_is_seen_at_once() -> None:
    async def story(cluster: ClusterKit) -> None:
        first = cluster.leader()
        leading: list[int] = []
        cluster.lookout.listen(lambda broker, partition, before: leading.append(broker))
        cluster[first].kill()
        assert await cluster.lookout.until(lambda: cluster.leader() not in (0, first), 20.0, 20.0)
        assert cluster.leader() in leading

    run(story)


class _NothingIsEverCommitted(Rule):
    name = "nothing is ever committed"

    def moved(self, replica: Replica, before: Offset, replicas: Sequence[Replica]) -> None:
        assert replica in replicas
        if replica.partition.log.high_watermark > before:
            self.broken(f"{replica} has committed something")


def test_a_rule_that_breaks_inside_a_broker_ends_the_run() -> None:
    """The broker's own handlers, which answer failures with an error code, do not swallow it."""

    async def story(cluster: ClusterKit) -> None:
        Witness(cluster, [_NothingIsEverCommitted])
        await cluster.produce(b"one", acks=-1)

    with pytest.raises(SimulationError) as failure:
        run(story)
    assert isinstance(failure.value.__cause__, BrokenRuleError)
