"""From the start of a broker's process to its first acknowledged record, over a bare socket.

A client would wait between its attempts to connect, and longer than a broker of ours takes.
"""

from __future__ import annotations

import socket
import time

from bench.broker_servers import Server
from bench.calls import ANSWER_DEADLINE_S, call, connection_to, until
from tidelog.errors import ErrorCode
from tidelog.records.build import build_batch
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.wire.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse

TOPIC = "first"
_POLL_S = 0.002
_DEADLINE_S = 90.0
_CREATE_VERSION, _PRODUCE_VERSION = 5, 9
_ALL = -1


def start(server: Server) -> float:
    """Launch a prepared broker; the seconds until a record in a new topic is acknowledged (acks=all)."""
    began = time.perf_counter()
    server.launch()
    what = f"a record acknowledged by {server.name}"
    until(lambda: _is_acknowledged(server), what, deadline_s=_DEADLINE_S, poll_s=_POLL_S)
    return time.perf_counter() - began


def _is_acknowledged(server: Server) -> bool:
    server.check_alive()
    try:
        with connection_to(server.port) as connection:
            return _is_created(connection) and _is_produced(connection)
    except OSError:
        return False


def _is_created(connection: socket.socket) -> bool:
    topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
    response = call(connection, CreateTopicsRequest(topics=[topic], timeout_ms=10_000), _CREATE_VERSION)
    assert isinstance(response, CreateTopicsResponse)
    return response.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)


def _is_produced(connection: socket.socket) -> bool:
    """Asked again on the same connection: the leader may take a moment after the topic was made."""
    batch = bytes(build_batch([(int(time.time() * 1000), None, bytes(100))]))
    data = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])
    request = ProduceRequest(acks=_ALL, timeout_ms=10_000, topic_data=[data])
    for _ in range(int(ANSWER_DEADLINE_S / _POLL_S)):
        response = call(connection, request, _PRODUCE_VERSION)
        assert isinstance(response, ProduceResponse)
        if response.responses[0].partition_responses[0].error_code == ErrorCode.NONE:
            return True
        time.sleep(_POLL_S)
    return False
