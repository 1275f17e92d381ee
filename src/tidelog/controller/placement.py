"""Where the replicas of new partitions go, as Kafka places them.

Leaders go round the brokers from a random one. The other replicas of a partition follow at a distance that grows by
one each time the leaders have gone round, so that the partitions a broker leads have their copies spread. With racks
the brokers are taken alternately from each rack, and a rack gets a second replica only when every rack has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidelog.errors import ErrorCode, TidelogError
from tidelog.ports import Random
from tidelog.types import BrokerId


class InvalidReplicationFactorError(TidelogError):
    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidPartitionsError(TidelogError):
    code = ErrorCode.INVALID_PARTITIONS


def place(
    racks: Mapping[BrokerId, str | None], partitions: int, replication_factor: int, random: Random
) -> dict[int, tuple[BrokerId, ...]]:
    """The replicas of partitions 0.. of a new topic, on the brokers that `racks` names."""
    _check(racks, partitions, replication_factor)
    start, shift = random.randrange(0, len(racks)), random.randrange(0, len(racks))
    return _deal(racks, range(partitions), replication_factor, start, shift)


def place_more(
    racks: Mapping[BrokerId, str | None], first_replicas: Sequence[BrokerId], existing: int, partitions: int
) -> dict[int, tuple[BrokerId, ...]]:
    """The replicas of partitions that follow `existing` ones, whose partition 0 has `first_replicas`.

    It starts where partition 0 did, so that an untouched topic goes on as if all had been made at once.
    """
    _check(racks, partitions, len(first_replicas))
    start = next((at for at, broker in enumerate(sorted(racks)) if broker >= first_replicas[0]), 0)
    return _deal(racks, range(existing, existing + partitions), len(first_replicas), start, start)


def _check(racks: Mapping[BrokerId, str | None], partitions: int, replication_factor: int) -> None:
    if partitions <= 0:
        raise InvalidPartitionsError(f"the number of partitions must be larger than 0, not {partitions}")
    if replication_factor <= 0:
        raise InvalidReplicationFactorError(f"the replication factor must be larger than 0, not {replication_factor}")
    if replication_factor > len(racks):
        raise InvalidReplicationFactorError(
            f"a replication factor of {replication_factor} needs as many brokers, and {len(racks)} are alive"
        )


def _deal(
    racks: Mapping[BrokerId, str | None], partitions: range, replication_factor: int, start: int, shift: int
) -> dict[int, tuple[BrokerId, ...]]:
    known = {broker: rack for broker, rack in racks.items() if rack is not None}
    # Racks count only if every broker has one, else a broker without would never get its share.
    by_rack = known if len(known) == len(racks) else None
    brokers = sorted(racks) if by_rack is None else alternate_racks(by_rack)
    placed: dict[int, tuple[BrokerId, ...]] = {}
    for partition in partitions:
        if partition > 0 and partition % len(brokers) == 0:
            shift += 1
        first = (partition + start) % len(brokers)
        if by_rack is None:
            others = [brokers[_at(first, shift, at, len(brokers))] for at in range(replication_factor - 1)]
            placed[partition] = (brokers[first], *others)
        else:
            placed[partition] = _across_racks(brokers, by_rack, replication_factor, first, shift)
    return placed


def _across_racks(
    brokers: Sequence[BrokerId], racks: Mapping[BrokerId, str], replication_factor: int, first: int, shift: int
) -> tuple[BrokerId, ...]:
    rack_count = len(set(racks.values()))
    chosen = [brokers[first]]
    used = {racks[chosen[0]]}
    at = 0
    while len(chosen) < replication_factor:
        broker = brokers[_at(first, shift * rack_count, at, len(brokers))]
        at += 1
        if broker not in chosen and (racks[broker] not in used or len(used) == rack_count):
            chosen.append(broker)
            used.add(racks[broker])
    return tuple(chosen)


def alternate_racks(racks: Mapping[BrokerId, str]) -> list[BrokerId]:
    """The brokers by id, taken from one rack after the other: racks a{0,1} b{2,3} give 0, 2, 1, 3."""
    by_rack = {rack: [b for b in sorted(racks) if racks[b] == rack] for rack in sorted(set(racks.values()))}
    deepest = max(map(len, by_rack.values()))
    return [brokers[at] for at in range(deepest) for brokers in by_rack.values() if at < len(brokers)]


def _at(first: int, shift: int, at: int, count: int) -> int:
    """Never `first` itself."""
    return (first + 1 + (shift + at) % (count - 1)) % count
