"""Offset commits as many members send them: several connections at once, each with some requests under way."""

from __future__ import annotations

import selectors
import socket
import time
from contextlib import ExitStack

from bench.broker_servers import Server
from bench.calls import call, connection_to, until
from peers.process import PeerFailedError
from tidelog.errors import ErrorCode
from tidelog.wire.frames import decode_response, encode_request
from tidelog.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tidelog.wire.messages.groups import ListGroupsRequest, ListGroupsResponse
from tidelog.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse

TOPIC = "committed"
_COMMIT_VERSION, _FETCH_VERSION, _FIND_VERSION, _LIST_VERSION = 8, 8, 4, 4
_DEADLINE_S = 120.0
_RECEIVE_BYTES = 1 << 18


def wait_for_coordinator(server: Server, groups: list[str]) -> None:
    """Until the broker takes commits of all of them."""

    def answers() -> bool:
        with connection_to(server.port) as connection:
            found = call(connection, FindCoordinatorRequest(coordinator_keys=groups), _FIND_VERSION)
            assert isinstance(found, FindCoordinatorResponse)
            if any(one.error_code for one in found.coordinators):
                return False
            return not any(_committed(connection, group, -1) for group in groups)

    until(answers, f"{server.name} coordinates {len(groups)} groups", deadline_s=_DEADLINE_S, poll_s=0.05)


def _committed(connection: socket.socket, group: str, offset: int) -> int:
    """The error code."""
    answer = call(connection, _commit(group, max(offset, 0)), _COMMIT_VERSION)
    assert isinstance(answer, OffsetCommitResponse)
    code: int = answer.topics[0].partitions[0].error_code
    return code


def _commit(group: str, offset: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    return OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])])


class _Committer:
    """One connection and one group: offsets 0, 1, 2 and so on, at most `window` of them without an answer."""

    def __init__(self, connection: socket.socket, group: str, count: int, window: int) -> None:
        self.connection = connection
        self.group = group
        self._frames = [
            b"".join(encode_request(_commit(group, number), _COMMIT_VERSION, number, "bench"))
            for number in range(count)
        ]
        self._window = window
        self._sent = 0
        self._received = 0
        self._buffer = b""

    def send(self) -> None:
        end = min(self._received + self._window, len(self._frames))
        if end > self._sent:
            self.connection.sendall(b"".join(self._frames[self._sent : end]))
            self._sent = end

    def receive(self) -> bool:
        """True when all are answered."""
        data = self.connection.recv(_RECEIVE_BYTES)
        if not data:
            raise PeerFailedError("the broker closed the connection")
        self._buffer += data
        position = 0
        while len(self._buffer) - position >= 4:
            size = int.from_bytes(self._buffer[position : position + 4], "big")
            if len(self._buffer) - position - 4 < size:
                break
            self._check(self._buffer[position + 4 : position + 4 + size])
            position += 4 + size
        self._buffer = self._buffer[position:]
        self.send()
        return self._received == len(self._frames)

    def _check(self, frame: bytes) -> None:
        if self._received % 100 == 0:  # each would make the client what is measured
            answer = decode_response(OffsetCommitRequest.__schema__.api_key, _COMMIT_VERSION, frame).response
            assert isinstance(answer, OffsetCommitResponse)
            code = ErrorCode(answer.topics[0].partitions[0].error_code)
            if code:
                raise PeerFailedError(f"a commit was answered {code.name}")
        self._received += 1


def commits_per_s(server: Server, groups: list[str], per_group: int, window: int) -> float:
    """Answered commits a second; what was committed last is asked for afterwards."""
    wait_for_coordinator(server, groups)
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        committers = [
            _Committer(stack.enter_context(connection_to(server.port)), group, per_group, window) for group in groups
        ]
        for one in committers:
            selector.register(one.connection, selectors.EVENT_READ, one)
        with server.cpu_counted():
            began = time.perf_counter()
            for one in committers:
                one.send()
            working = len(committers)
            while working:
                for key, _ in selector.select(_DEADLINE_S):
                    if key.data.receive():
                        selector.unregister(key.fileobj)
                        working -= 1
            took_s = time.perf_counter() - began
    with connection_to(server.port) as connection:
        for group in groups:
            if (last := _last_committed(connection, group)) != per_group - 1:
                raise PeerFailedError(f"{group} committed {per_group - 1} last, and {last} is stored")
    return len(groups) * per_group / took_s


def _last_committed(connection: socket.socket, group: str) -> int:
    wanted = OffsetFetchRequestGroup(
        group_id=group, topics=[OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])]
    )
    answer = call(connection, OffsetFetchRequest(groups=[wanted]), _FETCH_VERSION)
    assert isinstance(answer, OffsetFetchResponse)
    offset: int = answer.groups[0].topics[0].partitions[0].committed_offset
    return offset


# Loading


def fill(server: Server, count: int) -> None:
    """So many groups, with one committed offset each."""
    groups = [f"group-{number}" for number in range(count)]
    wait_for_coordinator(server, groups[:1])
    with connection_to(server.port) as connection:
        for group in groups:
            until(
                lambda group=group: _committed(connection, group, 1) == 0,  # type: ignore[misc]
                f"a commit of {group}",
                deadline_s=_DEADLINE_S,
                poll_s=0.01,
            )


def load_s(server: Server, count: int) -> float:
    """Of a broker that was killed: from the moment it answers again until it lists all groups as loaded."""
    server.kill()
    server.launch()
    until(lambda: _listed(server) is not None, f"{server.name} answers", deadline_s=_DEADLINE_S, poll_s=0.002)
    began = time.perf_counter()
    until(lambda: (_listed(server) or 0) >= count, f"{count} groups loaded", deadline_s=_DEADLINE_S, poll_s=0.002)
    return time.perf_counter() - began


def _listed(server: Server) -> int | None:
    """How many groups it has loaded, 0 while it is still loading, None if it does not answer."""
    server.check_alive()
    try:
        with connection_to(server.port) as connection:
            answer = call(connection, ListGroupsRequest(), _LIST_VERSION)
    except OSError:
        return None
    assert isinstance(answer, ListGroupsResponse)
    return 0 if answer.error_code else len(answer.groups)
