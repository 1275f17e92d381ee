"""A broker stands still for longer than its session, and wakes up when others lead: it acknowledges nothing."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.kits.logkit import batch
from tests.kits.processclusterkit import (
    CONTROLLER,
    HOMES,
    LEADER,
    LED_BY_CONTROLLER,
    LED_BY_LEADER,
    TOPIC,
    process_cluster,
)
from tests.kits.processkit import wait_for
from tidelog.errors import ErrorCode
from tidelog.wire.frames import decode_response, encode_request
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

BEFORE, AFTER = 200, 200
ALL, LEADER_ONLY = -1, 1
_PRODUCE, _VERSION = 0, 9
_ANSWER_S = 20.0


class Letterbox:
    """A connection of its own to one broker: what is sent lies there until the broker reads it."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_S)
        self._answers = self._socket.makefile("rb")

    def send(self, value: bytes, partition: int, acks: int) -> None:
        data = PartitionProduceData(index=partition, records=batch([value]))
        topic = TopicProduceData(name=TOPIC, partition_data=[data])
        request = ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[topic])
        self._socket.sendall(b"".join(encode_request(request, _VERSION, 0, "letterbox")))

    def answer(self) -> ErrorCode:
        """NETWORK_EXCEPTION if the broker ends the connection in place of an answer."""
        size = self._answers.read(4)
        if not size:
            return ErrorCode.NETWORK_EXCEPTION
        frame = self._answers.read(struct.unpack(">i", size)[0])
        response: Any = decode_response(_PRODUCE, _VERSION, frame).response
        return ErrorCode(response.responses[0].partition_responses[0].error_code)

    def close(self) -> None:
        self._answers.close()
        self._socket.close()


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize(
    ("victim", "led"),
    [
        pytest.param(LEADER, LED_BY_LEADER, id="leader"),
        pytest.param(CONTROLLER, LED_BY_CONTROLLER, id="controller", marks=pytest.mark.long),
    ],
)
def test_a_broker_that_stood_still_acknowledges_nothing(
    tmp_path: Path, home: str, victim: int, led: tuple[int, ...]
) -> None:
    with process_cluster(tmp_path, home) as cluster:
        load = cluster.load()
        letters = Letterbox(cluster.ports[victim])
        load.wait_for_more(BEFORE)
        cluster.freeze(victim)
        for partition in led:
            letters.send(b"of nobody", partition, ALL)
            letters.send(b"of nobody", partition, LEADER_ONLY)
        cluster.wait_for_leader(other_than=victim, partitions=led)
        load.wait_for_more(AFTER)
        cluster.thaw(victim)
        answers = [letters.answer() for _ in led for _ in (ALL, LEADER_ONLY)]
        assert ErrorCode.NONE not in answers
        letters.close()
        wait_for(lambda: bool(cluster[victim].lines("is registered with epoch")[1:]), "its next life")
        load.wait_for_more(AFTER)
        cluster.check(load)
