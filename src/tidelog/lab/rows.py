"""A replica as a story shows it: read from the running broker, or from its disk where none runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelog.broker.fetch_sessions import FetchItem
from tidelog.broker.partition import Partition
from tidelog.errors import TidelogError
from tidelog.lab.broker import DATA
from tidelog.lab.disk import SimDisk
from tidelog.lab.frames import EpochEntry, Record, ReplicaRow, Role
from tidelog.log.checkpoints import read_epoch_checkpoint, read_offset_checkpoint
from tidelog.log.log import Log
from tidelog.log.names import HIGH_WATERMARKS, LEADER_EPOCHS, LOG
from tidelog.records.batch import decode_batch
from tidelog.records.header import check_crc, headers
from tidelog.replication.leader import UNKNOWN_OFFSET
from tidelog.types import BrokerId, TopicPartition

Names = Mapping[BrokerId, str]


def living_row(names: Names, own: BrokerId, partition: Partition, role: Role) -> ReplicaRow:
    """Of a broker that runs, or would if it were not frozen."""
    log, leader = partition.log, partition.leader
    records = _records(_segments(log))
    remotes = {} if leader is None else leader.remotes
    return ReplicaRow(
        names[own],
        role,
        records,
        log.high_watermark,
        log.log_end_offset,
        log.log_start_offset,
        partition.leader_epoch,
        tuple(EpochEntry(epoch, start) for epoch, start in log.epochs.entries),
        isr=() if leader is None else tuple(names[one] for one in sorted(leader.isr)),
        remote_log_ends=tuple(
            (names[one], None if remote.log_end_offset == UNKNOWN_OFFSET else remote.log_end_offset)
            for one, remote in sorted(remotes.items())
        ),
        purgatory=(*_parked_fetches(names, partition), *_waiting_produces(partition, records)),
    )


def dead_row(name: str, disk: SimDisk, partition: TopicPartition) -> ReplicaRow:
    """What a broker would find on its disk: of HW only what was written down of it."""
    directory = f"{DATA}/{partition.topic}-{partition.partition}"
    files = sorted(file for file in disk.list(directory) if file.endswith(LOG))
    records = _records(disk.read_file(f"{directory}/{file}") for file in files)
    end = records[-1].offset + 1 if records else 0
    high_watermark = read_offset_checkpoint(disk, f"{DATA}/{HIGH_WATERMARKS}").get(partition, 0)
    epochs = read_epoch_checkpoint(disk, f"{directory}/{LEADER_EPOCHS}")
    return ReplicaRow(
        name,
        Role.DEAD,
        records,
        min(high_watermark, end),
        end,
        epochs=tuple(EpochEntry(epoch, start) for epoch, start in epochs),
    )


def _segments(log: Log) -> Iterable[bytes]:
    return (bytes(one.file.read_at(0, one.size)) for one in log.segments)


def _records(files: Iterable[bytes]) -> tuple[Record, ...]:
    """Up to what is torn, if a power loss tore something."""
    found: list[Record] = []
    try:
        for data in files:
            for position, header in headers(data):
                check_crc(header, data, position)
                for record in decode_batch(data, header, position):
                    label = (record.value or b"").decode()
                    found.append(Record(record.offset, label, header.partition_leader_epoch))
    except TidelogError:
        pass
    return tuple(found)


def _parked_fetches(names: Names, partition: Partition) -> list[str]:
    parked = []
    for item in partition.watchers:
        if isinstance(item, FetchItem) and item.session.parked is not None and item.session.parked.replica_id in names:
            parked.append(f"fetch of {names[item.session.parked.replica_id]} at {item.fetch_offset}")
    return sorted(parked)


def _waiting_produces(partition: Partition, records: tuple[Record, ...]) -> list[str]:
    labels = {record.offset + 1: record.label for record in records}
    return [f"produce of {labels[waiter.offset]}" for waiter in partition.awaiting_commit]
