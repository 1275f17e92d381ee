"""Topics that go: marked, their replicas deleted one by one, and at last their nodes (S12)."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.controller.events import ForgetDeletion, RemoveTopic
from tidelog.controller.turn import Turn
from tidelog.types import BrokerId


def mark_for_deletion(turn: Turn, names: Iterable[str]) -> list[str]:
    """Those that were not marked before. A wish that cannot be granted is taken back."""
    marked: list[str] = []
    for name in names:
        if name not in turn.image.topics or not turn.deletion_enabled:
            turn.outcome.writes.append(ForgetDeletion(name))
        elif name not in turn.image.deleting:
            turn.image.deleting[name] = set()
            marked.append(name)
    return marked


def delete_replicas(turn: Turn, names: Iterable[str], only: Iterable[BrokerId] | None = None) -> None:
    """Tell the living brokers; the others when they come back. Until then the deletion waits."""
    names = list(names)
    among = turn.image.brokers if only is None else list(only)
    for name in names:
        done = turn.image.deleting[name]
        for partition, broker in turn.image.holders(name):
            if broker in among and (partition, broker) not in done:
                turn.batch.delete_replica(broker, partition)
    finish_deletions(turn, names)


def finish_deletions(turn: Turn, names: Iterable[str]) -> None:
    for name in names:
        if all(replica in turn.image.deleting[name] for replica in turn.image.holders(name)):
            turn.outcome.writes.append(RemoveTopic(name))
            turn.image.remove_topic(name)
