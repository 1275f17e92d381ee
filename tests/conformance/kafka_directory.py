"""What stands in a log directory of Kafka's, read without tidelog: files by DumpLogSegments, checkpoints by eye."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from peers.clients import create_topic
from peers.dump import dump_segments, fields
from peers.kafka import ZooKeeperBroker
from peers.zookeeper import ZooKeeper

ProducerFacts = tuple[int | None, ...]
"""Producer id, epoch, coordinator epoch, first offset of the open transaction, last sequence, last offset."""


def properties(path: Path) -> dict[str, str]:
    """The lines of meta.properties or partition.metadata, which has a colon where the other has an equals sign."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {
        name.strip(): value.strip() for name, _, value in (line.replace(":", "=", 1).partition("=") for line in lines)
    }


def leader_epochs(partition: Path) -> list[tuple[int, int]]:
    lines = (partition / "leader-epoch-checkpoint").read_text().splitlines()[2:]
    return [(int(epoch), int(start)) for epoch, start in (line.split() for line in lines)]


def last_producer_states(version: str, partitions: Iterable[Path]) -> dict[str, list[ProducerFacts]]:
    """Of each partition, what its last producer snapshot says."""
    last = {path.name: max(path.glob("*.snapshot")) for path in partitions}
    dumped = dump_segments(version, last.values())
    return {name: sorted(map(_producer, dumped[file].entries), key=repr) for name, file in last.items()}


def _producer(line: str) -> ProducerFacts:
    entry = fields(line)
    names = ("producerId", "producerEpoch", "coordinatorEpoch", "currentTxnFirstOffset", "lastSequence", "lastOffset")
    return tuple(entry.get(name) for name in names)


def aborted_transactions(version: str, partition: Path) -> list[tuple[int | None, ...]]:
    """Producer id, first and last offset and last stable offset of each, from all the partition's indexes."""
    files = sorted(partition.glob("*.txnindex"))
    dumped = dump_segments(version, files)
    entries = [fields(line) for file in files for line in dumped[file].entries]
    return [tuple(e[name] for name in ("producerId", "firstOffset", "lastOffset", "lastStableOffset")) for e in entries]


@dataclass(frozen=True)
class Cluster:
    """A cluster on ZooKeeper in which topics are registered, with no broker up."""

    cluster_id: str
    topic_ids: Mapping[str, bytes]
    settings: dict[str, str | int]
    """With which a broker joins it."""


def register_topics(
    zookeeper: ZooKeeper,
    chroot: str,
    scratch: Path,
    topics: Mapping[str, int],
    config_of: Callable[[str], Mapping[str, str | int]],
) -> Cluster:
    """Let a Kafka create the topics and stop. The next one will lead in epoch 2: tidelog may write in 0 and 1."""
    settings: dict[str, str | int] = {"zookeeper.connect": f"{zookeeper.connect}{chroot}"}
    with ZooKeeperBroker(scratch, zookeeper, settings=settings) as broker:
        for topic, count in topics.items():
            create_topic(broker.bootstrap, topic, partitions=count, config=config_of(topic))
    raise_leader_epochs(zookeeper, chroot, topics)
    metadata = {topic: properties(broker.log_dir / f"{topic}-0" / "partition.metadata") for topic in topics}
    return Cluster(
        properties(broker.log_dir / "meta.properties")["cluster.id"],
        {topic: urlsafe_b64decode(lines["topic_id"] + "==") for topic, lines in metadata.items()},
        settings,
    )


def raise_leader_epochs(zookeeper: ZooKeeper, chroot: str, topics: Mapping[str, int]) -> None:
    """As if there had been elections while the only broker was away: by two in every partition."""
    with zookeeper.client() as client:
        for topic, count in topics.items():
            for partition in range(count):
                path = f"{chroot}/brokers/topics/{topic}/partitions/{partition}/state"
                state = json.loads(client.get(path)[0])
                state["leader_epoch"] += 2
                client.set(path, json.dumps(state).encode())
