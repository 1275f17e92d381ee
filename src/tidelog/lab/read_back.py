"""Read your writes: a writer asks the leader for a record right after its acknowledgement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.errors import ErrorCode, TidelogError
from tidelog.lab.broker import PORT
from tidelog.lab.cluster import LabCluster
from tidelog.lab.rules import Acknowledged
from tidelog.net.calling import Connection
from tidelog.records.batch import decode
from tidelog.replication.leader import Leader
from tidelog.types import BrokerId
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

if TYPE_CHECKING:
    from tidelog.lab.witness import Witness

_BY_NAME = 12
_TIMEOUT_MS = 1_000


class _Term(NamedTuple):
    broker: BrokerId
    leader: Leader


async def read_back(cluster: LabCluster[Any], witness: Witness, record: Acknowledged) -> None:
    """One fetch at the present leader.

    It says something if that leader was sure of its term when the fetch began, and still leads when the answer is
    there. A leader that is new does not know what is committed before its followers have fetched (S2.5), and one that
    leads no more may have lost what it had.
    """
    term = _sure_term(cluster, record)
    if term is None:
        return
    wanted = FetchPartition(
        partition=record.partition.partition, fetch_offset=record.offset, partition_max_bytes=1 << 20
    )
    topic = FetchTopic(topic=record.partition.topic, partitions=[wanted])
    request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=[topic])
    try:
        connection = await Connection.open(
            f"b{term.broker}", PORT, client_id=record.producer, connect_timeout_ms=_TIMEOUT_MS
        )
        try:
            answer = await connection.call(request, _BY_NAME, timeout_ms=_TIMEOUT_MS)
        finally:
            connection.close()
    except TidelogError:
        return
    data = answer.responses[0].partitions[0]
    if _sure_term(cluster, record) != term:
        return
    if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        witness.read_back(record, (), refusal=ErrorCode(data.error_code).name)
    elif not data.error_code:
        witness.read_back(record, decode(data.records or b""))


def _sure_term(cluster: LabCluster[Any], record: Acknowledged) -> _Term | None:
    index = record.partition.partition
    number = cluster.leader(index)
    replica = cluster.replica(number, index) if number else None
    leader = None if replica is None else replica.leader
    if leader is None or not cluster.is_running(number) or not cluster[number].broker.is_current:
        return None
    return _Term(number, leader) if leader.high_watermark >= leader.epoch_start_offset else None
