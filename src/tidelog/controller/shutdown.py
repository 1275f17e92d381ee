"""ControlledShutdown: a broker that is about to stop hands over what it leads (S12.3).

From then on, until its next life, it is elected nowhere and let into no ISR.
"""

from __future__ import annotations

from tidelog.controller.events import ShutdownAsked
from tidelog.controller.turn import Turn
from tidelog.errors import ErrorCode
from tidelog.types import BrokerId
from tidelog.wire.messages.controller import ControlledShutdownResponse, RemainingPartition


def shut_down(turn: Turn, event: ShutdownAsked) -> None:
    """The answer names the partitions that it leads on since nobody else is in sync; it may ask again."""
    broker = turn.image.brokers.get(event.broker)
    if broker is None:
        turn.outcome.answer = ControlledShutdownResponse(error_code=ErrorCode.BROKER_NOT_AVAILABLE)
    elif event.broker_epoch != broker.epoch:
        turn.outcome.answer = ControlledShutdownResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    else:
        turn.image.shutting_down[broker.id] = broker.epoch
        turn.outcome.answer = ControlledShutdownResponse(remaining_partitions=_hand_over(turn, broker.id))


def _hand_over(turn: Turn, broker: BrokerId) -> list[RemainingPartition]:
    """Partitions that have no other replica are left alone: they end with the broker."""
    remaining: list[RemainingPartition] = []
    for topic in turn.image.standing():
        for partition in topic.partitions():
            before = topic.states.get(partition.partition)
            replicas = topic.assignments[partition.partition].replicas
            if before is None or broker not in replicas or len(replicas) == 1:
                continue
            turn.settle_partition(topic, partition)
            after = topic.states[partition.partition]
            if after.leader == broker:
                remaining.append(RemainingPartition(topic_name=topic.name, partition_index=partition.partition))
            elif before.leader != broker:
                # It need not fetch any more. Who led until now hears of its successor instead.
                turn.batch.stop_replica(broker, partition, after.leader_epoch, delete=False)
    return remaining
