"""The same random requests to our coordinator and to Kafka's: every answer is compared.

What depends on time is left out: sessions are long, and a group rebalances when all have joined. So is what Kafka
leaves without an answer (a join or sync that its own client has superseded, or whose member is removed).
"""

from __future__ import annotations

import random
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

import pytest

from peers.kafka import KraftBroker
from tests.kits.groupkit import CLIENT, Coordinator, group_config, subscription
from tidelog.errors import ErrorCode
from tidelog.groups import GroupState, fetch_response
from tidelog.groups.group import Group
from tidelog.wire.codec import decode, encode
from tidelog.wire.frames import decode_response, encode_request
from tidelog.wire.messages.group_offsets import OffsetFetchResponseGroup
from tidelog.wire.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupResponse,
)
from tidelog.wire.messages.metadata import FindCoordinatorRequest
from tidelog.wire.messages.topics import CreatableTopic, CreateTopicsRequest
from tidelog.wire.schema import Message

pytestmark = pytest.mark.jvm

SEEDS = range(25)
STEPS = 60
MAX_SIZE = 4
SESSION_MS = 60_000
ANSWER_S = 10.0
QUIET_S = 0.03
"""An answer that only one of the two gives would come within this time after those that both give."""
OFFERS: tuple[dict[str, bytes], ...] = (
    {"range": subscription("orders")},
    {"range": subscription("orders")},
    {"range": subscription("refunds")},
    {"roundrobin": subscription("orders"), "range": subscription("orders")},
)
UNKNOWN = "somebody who waits"
"""An id that its owner has not been told."""
VOLATILE = {"throttle_time_ms", "authorized_operations", "error_message"}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KraftBroker]:
    settings = {"group.max.size": MAX_SIZE, "group.coordinator.append.linger.ms": 0}
    with KraftBroker(tmp_path_factory.mktemp("groups-kafka"), settings=settings) as broker:
        topics = [CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in ("orders", "refunds")]
        ask(broker, CreateTopicsRequest(topics=topics, timeout_ms=30_000), 7)
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=["x"])
        end_s = monotonic() + 60
        while ask(broker, find, 4).coordinators[0].error_code:
            assert monotonic() < end_s, "the coordinator does not come up"
            select.select([], [], [], 0.1)
        stranger = HeartbeatRequest(group_id="x", member_id="stranger")
        while ask(broker, stranger, 4).error_code != ErrorCode.UNKNOWN_MEMBER_ID:
            assert monotonic() < end_s, "the coordinator does not come up"
            select.select([], [], [], 0.1)
        yield broker


def connect(broker: KraftBroker) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), timeout=ANSWER_S)


def send(connection: socket.socket, request: Message, version: int) -> None:
    connection.sendall(b"".join(encode_request(request, version, 1, CLIENT.id)))


def receive(connection: socket.socket, api_key: int, version: int) -> Any:
    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    return decode_response(api_key, version, connection.recv(size, socket.MSG_WAITALL)).response


def ask(broker: KraftBroker, request: Message, version: int) -> Any:
    with connect(broker) as connection:
        send(connection, request, version)
        return receive(connection, request.__schema__.api_key, version)


def parts(value: Any, ids: Callable[[str], str]) -> Any:
    """A message as plain values, with member ids as `ids` has them; members in the order of their ids."""
    if isinstance(value, list):
        made = [parts(element, ids) for element in value]
        return sorted(made, key=repr)
    if not isinstance(value, Message):
        return value
    told = {}
    for field in value.__schema__.fields:
        if field.name not in VOLATILE:
            content = getattr(value, field.name)
            is_id = field.name in ("member_id", "leader") and isinstance(content, str)
            told[field.name] = ids(content) if is_id else parts(content, ids)
    return told


@dataclass
class Reader:
    """A client, as our coordinator knows it."""

    instance_id: str | None
    member_id: str = ""
    generation: int = -1
    members: tuple[str, ...] = ()
    """Those it has to assign to."""
    waits_for: int | None = None


class LeadersDifferError(Exception):
    """Of several members that may lead, each coordinator took another: what follows cannot be compared."""


class Twins:
    """One group in two coordinators."""

    def __init__(self, kafka: KraftBroker, seed: int) -> None:
        self.kafka = kafka
        self.random = random.Random(seed)
        self.group_id = f"twins-{seed}"
        self.ours = Coordinator(group_config(max_size=MAX_SIZE, initial_rebalance_delay_ms=0))
        self.connections: dict[int, socket.socket] = {}
        self.compared: set[int] = set()
        self.theirs: dict[str, str] = {}
        """Kafka's ids by ours."""
        self.readers = [Reader(None), Reader(None), Reader("a"), Reader("b")]
        self.history: list[str] = []

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()

    def group(self) -> Group | None:
        return self.ours.groups._groups.get(self.group_id)

    # Asking both

    def both(self, ticket: int, reader: Reader | None = None) -> None:
        request, version = self.ours.requests[ticket]
        request = decode(type(request), encode(request, version), version)
        self.history.append(f"{ticket}: {request}")
        self._translate(request)
        connection = self.connections[ticket] = connect(self.kafka)
        send(connection, request, version)
        if reader is not None:
            reader.waits_for = ticket
        self.ours.pass_ms(0)
        self._compare_answers()

    def _translate(self, value: Any) -> None:
        if isinstance(value, list):
            for element in value:
                self._translate(element)
        elif isinstance(value, Message):
            for field in value.__schema__.fields:
                content = getattr(value, field.name)
                if field.name == "member_id" and isinstance(content, str):
                    setattr(value, field.name, self.theirs.get(content, content))
                else:
                    self._translate(content)

    def _compare_answers(self) -> None:
        expected = {ticket for ticket in self.connections if ticket in self.ours.answers}
        answers = {ticket: self._receive(ticket) for ticket in sorted(expected - self.compared)}
        waiting = [connection for ticket, connection in self.connections.items() if ticket not in expected]
        assert not select.select(waiting, [], [], QUIET_S)[0], self._story("Kafka answers and we do not")
        for ticket, answer in answers.items():
            mine = self.ours.answers[ticket]
            if isinstance(mine, JoinGroupResponse) and mine.member_id and answer.member_id:
                assert self.theirs.setdefault(mine.member_id, answer.member_id) == answer.member_id
        for ticket, answer in answers.items():
            self._compare(ticket, self._whole(ticket), answer)
        self.compared |= expected
        for reader in self.readers:
            if reader.waits_for in self.ours.answers:
                self._hear(reader, self.ours.answers[reader.waits_for])

    def _receive(self, ticket: int) -> Any:
        request, version = self.ours.requests[ticket]
        connection = self.connections[ticket]
        assert select.select([connection], [], [], ANSWER_S)[0], self._story(f"Kafka does not answer {ticket}")
        return receive(connection, request.__schema__.api_key, version)

    def _whole(self, ticket: int) -> Message:
        """Our answer as it would come over the wire."""
        version = self.ours.requests[ticket][1]
        answer = self.ours.answers[ticket]
        if isinstance(answer, OffsetFetchResponseGroup):
            answer = fetch_response([answer], version)
        elif isinstance(answer, DeletableGroupResult):
            answer = DeleteGroupsResponse(results=[answer])
        assert isinstance(answer, Message)
        return decode(type(answer), encode(answer, version), version)

    def _compare(self, ticket: int, mine: Message, answer: Message) -> None:
        known = {"", *self.theirs.values()}
        ours = parts(mine, lambda member_id: self.theirs.get(member_id, member_id and UNKNOWN))
        theirs = parts(answer, lambda member_id: member_id if member_id in known else UNKNOWN)
        if ours != theirs and "leader" in ours:
            candidates = {name for name in ours if name not in ("leader", "members")}
            if all(ours[name] == theirs[name] for name in candidates) and theirs["leader"] in self.theirs.values():
                raise LeadersDifferError
        for told in (ours, theirs):
            if told.get("error_code") and "protocol_name" in told:
                del told["protocol_name"]  # With an error it says nothing.
        assert ours == theirs, self._story(f"answers to {ticket} differ")

    def _hear(self, reader: Reader, answer: Any) -> None:
        reader.waits_for = None
        if not isinstance(answer, JoinGroupResponse):
            return
        if answer.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            reader.member_id, reader.generation = answer.member_id, answer.generation_id
            reader.members = tuple(member.member_id for member in answer.members)
        elif answer.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED):
            reader.member_id, reader.generation = "", -1

    def _story(self, what: str) -> str:
        return "\n".join([*self.history, what])

    # What readers do

    def step(self) -> None:
        reader = self.random.choice(self.readers)
        does = self.random.choices(
            [self.join, self.sync, self.heartbeat, self.leave, self.commit, self.come_back, self.administer],
            [6, 6, 2, 1, 2, 1, 1],
        )[0]
        does(reader)

    def join(self, reader: Reader) -> None:
        if reader.waits_for is None:
            version = self.random.choice([5, 7, 9] if reader.instance_id else [3, 4, 9])
            self.both(
                self.ours.join(
                    reader.member_id,
                    group_id=self.group_id,
                    instance_id=reader.instance_id,
                    protocols=self.random.choice(OFFERS),
                    session_ms=SESSION_MS,
                    version=version,
                ),
                reader,
            )

    def sync(self, reader: Reader) -> None:
        if reader.waits_for is None and reader.member_id:
            generation = reader.generation + (self.random.random() < 0.05)
            ticket = self.ours.sync(
                reader.member_id,
                generation,
                {member_id: b"%d" % number for number, member_id in enumerate(sorted(reader.members))},
                group_id=self.group_id,
                instance_id=reader.instance_id,
                protocol=None,
                version=4,
            )
            self.both(ticket, reader)

    def heartbeat(self, reader: Reader) -> None:
        before = set(self.ours.requests)
        self.ours.heartbeat(reader.member_id, reader.generation, group_id=self.group_id, instance_id=reader.instance_id)
        (ticket,) = set(self.ours.requests) - before
        self.both(ticket)

    def leave(self, reader: Reader) -> None:
        group = self.group()
        member = None if group is None else group.members.get(reader.member_id)
        is_pending = group is not None and reader.member_id in group.pending
        if is_pending or (member is not None and member.sync_ticket is not None):
            return
        by_name = reader.instance_id is not None and self.random.random() < 0.5
        identity = ("" if by_name else reader.member_id, reader.instance_id)
        self.both(self.ours.leave(identity, group_id=self.group_id, version=self.random.choice([3, 5])))

    def commit(self, reader: Reader) -> None:
        is_member = self.random.random() < 0.8
        ticket = self.ours.commit(
            {(self.random.choice(["orders", "refunds"]), self.random.randrange(2)): self.random.randrange(99)},
            reader.member_id if is_member else "",
            reader.generation if is_member else -1,
            group_id=self.group_id,
            instance_id=reader.instance_id if is_member else None,
            metadata=self.random.choice([None, "", "note"]),
            version=self.random.choice([8, 9]),
        )
        self.both(ticket)

    def come_back(self, reader: Reader) -> None:
        """A static member is started again. Kafka has no room for it in a full group; we have."""
        group = self.group()
        if reader.instance_id and (group is None or len(group.members) < MAX_SIZE):
            reader.member_id, reader.waits_for = "", None
            self.join(reader)

    def administer(self, _reader: Reader) -> None:
        group = self.group()
        if group is None or group.state is GroupState.EMPTY or self.random.random() < 0.3:
            self.both(self.ours.delete_group(self.group_id))
        self.both(self.ours.fetch(group_id=self.group_id))
        self.both(self.ours.fetch({"orders": [0, 1], "refunds": [1]}, group_id=self.group_id, version=8))

    def describe(self) -> None:
        """Kafka tells what is committed, and of a new group that may be a little later than its first answer.

        It also keeps a record of a group that nobody joined in the end; we forget it.
        """
        if self.group() is None:
            return
        ours = DescribeGroupsResponse(groups=[self.ours.groups.describe(self.group_id, 6)])
        end_s = monotonic() + ANSWER_S
        while True:
            theirs = ask(self.kafka, DescribeGroupsRequest(groups=[self.group_id]), 6)
            try:
                self._compare(0, decode(DescribeGroupsResponse, encode(ours, 6), 6), theirs)
                return
            except AssertionError:
                if monotonic() > end_s:
                    raise


@pytest.mark.parametrize("seed", SEEDS)
def test_kafka_answers_the_same(kafka: KraftBroker, seed: int) -> None:
    twins = Twins(kafka, seed)
    try:
        with suppress(LeadersDifferError):
            for _ in range(STEPS):
                twins.step()
                twins.describe()
    finally:
        twins.close()
    assert twins.compared
