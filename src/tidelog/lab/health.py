"""Which partitions are led in health, and which followers are well: seen from outside, as no broker can see it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import combinations
from typing import Any, NamedTuple

from tidelog.controller import nodes
from tidelog.coordination.port import NoNodeError, SessionState
from tidelog.lab.cluster import TOPIC, LabCluster
from tidelog.types import BrokerId, TopicPartition

_MIN_INSYNC = 2
"""min.insync.replicas of the topic."""


class Standing(NamedTuple):
    """A partition whose leader and whose controller are well and can talk to each other."""

    partition: TopicPartition
    term: Hashable
    """Equal at two looks if leader, controller and replicas are the same, in the same lives and terms."""
    isr: tuple[BrokerId, ...]
    """As it is stored."""
    followers: dict[BrokerId, Hashable]
    """Those that are well and reach the leader and the controller, each with its life."""


def standings(cluster: LabCluster[Any], indexes: Iterable[int]) -> list[Standing]:
    """Of the partitions that stand well. Whatever is not listed is excused for now."""
    lives = {number: _life(cluster, number) for number in cluster.brokers}
    controller = cluster.controller
    if not controller or lives[controller] is None:
        return []
    found = []
    for index in indexes:
        leader = cluster.leader(index)
        if not leader or lives[leader] is None or not _reaches(cluster, leader, controller):
            continue
        view = cluster.replicas(index)[leader].leader
        isr = _stored_isr(cluster, index)
        if view is None or leader not in isr:
            continue
        followers = {
            number: lives[number]
            for number in view.replicas
            if number != leader
            and lives[number] is not None
            and _reaches(cluster, number, leader)
            and _reaches(cluster, number, controller)
        }
        term = (leader, lives[leader], view.epoch, view.replicas, controller, lives[controller])
        found.append(Standing(TopicPartition(TOPIC, index), term, isr, followers))
    return found


class Footing(NamedTuple):
    """A partition of a cluster whose brokers all run and reach each other, whether they have a session or not."""

    partition: TopicPartition
    lives: Hashable
    """Equal at two looks if all processes are the same, and the same brokers lack a log directory."""
    is_firm: bool
    """Enough members of the ISR have all their log directories."""


def footings(cluster: LabCluster[Any], indexes: Iterable[int]) -> list[Footing]:
    """Of no partition while a broker is down, frozen or cut off, or has yet to find out that its disk fails."""
    runs = [_run(cluster, number) for number in cluster.brokers]
    if None in runs or not all(_reaches(cluster, *pair) for pair in combinations(cluster.brokers, 2)):
        return []
    whole = [number for number, one in cluster.brokers.items() if not one.broker.storage.is_partly_offline]
    found = []
    for index in indexes:
        partition = TopicPartition(TOPIC, index)
        if _is_readable(cluster, index):
            in_sync = [number for number in _stored_isr(cluster, index) if number in whole]
            found.append(Footing(partition, (*runs, *whole), len(in_sync) >= _MIN_INSYNC))
    return found


def isolated_controller(cluster: LabCluster[Any]) -> Hashable:
    """The life of a controller that is well, and cut off from all others, of which two are well and connected."""
    controller = cluster.controller
    life = _life(cluster, controller) if controller else None
    others = [number for number in cluster.brokers if number != controller]
    if life is None or not all(_is_cut(cluster, controller, other) for other in others):
        return None
    well = [number for number in others if _life(cluster, number) is not None]
    return life if len(well) > 1 and all(_reaches(cluster, well[0], other) for other in well) else None


def is_told(cluster: LabCluster[Any], indexes: Iterable[int]) -> bool:
    """Every broker knows of each partition what the store has, and who lives."""
    states = {index: cluster.stored_state(index) for index in indexes}
    return all(
        sorted(one.broker.metadata.brokers) == sorted(cluster.brokers)
        and all(
            (known := one.broker.metadata.partition(TOPIC, index)) is not None
            and (known.leader, known.leader_epoch, known.isr) == (state.leader, state.leader_epoch, state.isr)
            for index, state in states.items()
        )
        for one in cluster.brokers.values()
    )


def _life(cluster: LabCluster[Any], number: BrokerId) -> Hashable:
    """Of a broker that is well; None of one that is not."""
    one = cluster.brokers[number]
    host = one.host
    if not cluster.is_running(number) or host.process is None or host.process.frozen:
        return None
    broker, disk = one.broker, host.disk
    if broker.epoch < 0 or not broker.is_current or broker.session.state is not SessionState.CONNECTED:
        return None
    if broker.storage.is_partly_offline or disk.capacity_bytes is not None or disk._faults or disk.work.is_slow:
        return None
    return host.process.name, broker.epoch


def _run(cluster: LabCluster[Any], number: BrokerId) -> Hashable:
    """The process of a broker that runs; None of one that does not, or that has yet to find out that its disk fails."""
    one = cluster.brokers[number]
    process, disk = one.host.process, one.host.disk
    if process is None or process.frozen or not cluster.is_running(number) or one.broker.failed.done():
        return None
    is_found_out = one.broker.storage.is_partly_offline
    return process.name if is_found_out or (disk.capacity_bytes is None and not disk._faults) else None


def _is_readable(cluster: LabCluster[Any], index: int) -> bool:
    """The nodes of the topic and of the partition say what a controller needs."""
    try:
        cluster.stored_state(index)
        nodes.decode_topic(TOPIC, cluster.store.tree.get(nodes.topic_path(TOPIC)).data)
    except (NoNodeError, nodes.BadNodeError):
        return False
    return True


def _reaches(cluster: LabCluster[Any], one: BrokerId, other: BrokerId) -> bool:
    """Nothing is cut between them, nor slow."""
    links = (cluster.world.network.link(f"b{a}", f"b{b}") for a, b in ((one, other), (other, one)))
    return one == other or not any(link.is_cut or link.bytes_per_s is not None for link in links)


def _is_cut(cluster: LabCluster[Any], one: BrokerId, other: BrokerId) -> bool:
    return any(cluster.world.network.link(f"b{a}", f"b{b}").is_cut for a, b in ((one, other), (other, one)))


def _stored_isr(cluster: LabCluster[Any], index: int) -> tuple[BrokerId, ...]:
    try:
        return tuple(cluster.stored_isr(index))
    except NoNodeError:
        return ()
