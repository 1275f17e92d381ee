"""From the start of a broker's process to its first acknowledged record, over a bare socket.

No client stands between: it would wait between its attempts to connect, and longer than a broker of ours takes.
"""

from __future__ import annotations

import socket
import time

from bench.broker_servers import Server
from peers.process import PeerFailedError
from tidelog.errors import ErrorCode
from tidelog.records.build import build_batch
from tidelog.wire import Message
from tidelog.wire.frames import decode_response, encode_request
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.wire.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse

TOPIC = "first"
_POLL_S = 0.002
_DEADLINE_S = 90.0
_ANSWER_DEADLINE_S = 10.0
_CREATE_VERSION, _PRODUCE_VERSION = 5, 9
_ALL = -1


def start(server: Server) -> float:
    """Launch a prepared broker; the seconds until a record in a new topic is acknowledged (acks=all)."""
    began = time.perf_counter()
    server.launch()
    while not _is_acknowledged(server):
        server.check_alive()
        if time.perf_counter() - began > _DEADLINE_S:
            raise PeerFailedError(f"{server.name} acknowledged nothing within {_DEADLINE_S} s")
        time.sleep(_POLL_S)
    return time.perf_counter() - began


def _is_acknowledged(server: Server) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=_ANSWER_DEADLINE_S) as connection:
            return _is_created(connection) and _is_produced(connection)
    except OSError:
        return False


def _is_created(connection: socket.socket) -> bool:
    topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
    response = _call(connection, CreateTopicsRequest(topics=[topic], timeout_ms=10_000), _CREATE_VERSION)
    assert isinstance(response, CreateTopicsResponse)
    return response.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)


def _is_produced(connection: socket.socket) -> bool:
    """Asked again on the same connection: the leader may take a moment after the topic was made."""
    batch = bytes(build_batch([(int(time.time() * 1000), None, bytes(100))]))
    data = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])
    request = ProduceRequest(acks=_ALL, timeout_ms=10_000, topic_data=[data])
    for _ in range(int(_ANSWER_DEADLINE_S / _POLL_S)):
        response = _call(connection, request, _PRODUCE_VERSION)
        assert isinstance(response, ProduceResponse)
        if response.responses[0].partition_responses[0].error_code == ErrorCode.NONE:
            return True
        time.sleep(_POLL_S)
    return False


def _call(connection: socket.socket, request: Message, version: int) -> Message:
    connection.sendall(b"".join(encode_request(request, version, 1, "bench")))
    size = int.from_bytes(_read(connection, 4), "big")
    return decode_response(request.__schema__.api_key, version, _read(connection, size)).response


def _read(connection: socket.socket, size: int) -> bytes:
    data = connection.recv(size, socket.MSG_WAITALL)
    if len(data) < size:
        raise ConnectionResetError("the broker closed the connection")
    return data
