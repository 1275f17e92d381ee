"""A place in a classic group, as its coordinator keeps it: the requests of one member, and what it is known by.

It tries nothing again: `membership` knows which failure means what.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tidelog.client.cluster import Cluster
from tidelog.client.consumer_protocol import PROTOCOL_TYPE
from tidelog.client.coordinators import find_coordinators
from tidelog.client.errors import BrokerError, check
from tidelog.client.group_offsets import OFFSET_COMMIT, Committer, Offsets, check_commit, commit_request
from tidelog.errors import ErrorCode, TidelogError
from tidelog.groups.assignors import NO_GENERATION
from tidelog.net.calling import ConnectionClosedError
from tidelog.types import BrokerId
from tidelog.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tidelog.wire.schema import Message
from tidelog.wire.versions import Versions

_JOIN = Versions(5, 9)
_SYNC = Versions(3, 5)
_HEARTBEAT = Versions(3, 4)
_LEAVE = Versions(3, 5)
"""The first ones with static members."""

_JOIN_GRACE_MS = 5_000
"""The answer to a join comes when everybody has joined; this much longer is waited for it."""


class MemberSettings(NamedTuple):
    """By Kafka's names; the times are the documents' (S8)."""

    session_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 3_000
    rebalance_timeout_ms: int = 60_000
    """How long others wait for this one to join again; Kafka's consumers call it max.poll.interval.ms."""
    metadata_max_age_ms: int = 300_000
    """How often the leader looks whether topics have grown."""
    group_instance_id: str | None = None
    """Makes the member static: it keeps its place over a restart within the session timeout."""


DEFAULT_MEMBER = MemberSettings()


class Seat:
    """The requests of one member. A coordinator that does not answer, or is none, is looked for at the next request."""

    def __init__(self, cluster: Cluster, group: str, settings: MemberSettings) -> None:
        self.group = group
        self.member_id = ""
        self.generation = NO_GENERATION
        self._cluster = cluster
        self._settings = settings
        self._coordinator: BrokerId | None = None
        self._waits_for_others = False

    @property
    def committer(self) -> Committer:
        return Committer(self.member_id, self.generation, self._settings.group_instance_id)

    def forget_generation(self) -> None:
        self.generation = NO_GENERATION

    def forget(self) -> None:
        """The coordinator does not know this member: it joins as a new one."""
        self.member_id = ""
        self.generation = NO_GENERATION

    async def join(self, protocols: Mapping[str, bytes]) -> JoinGroupResponse:
        """Waits for everybody. With MEMBER_ID_REQUIRED the member id is known, and is to be joined with."""
        settings = self._settings
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=settings.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols.items()],
        )
        response: JoinGroupResponse = await self._call_and_wait(request, _JOIN)
        if response.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.member_id = response.member_id
        self._check(response.error_code, "joining")
        self.generation = response.generation_id
        return response

    async def sync(self, protocol: str | None, assignments: Mapping[str, bytes]) -> bytes:
        """The share of this member; the leader brings the shares of all."""
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._settings.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=protocol,
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=data) for member, data in assignments.items()
            ],
        )
        response: SyncGroupResponse = await self._call_and_wait(request, _SYNC)
        self._check(response.error_code, "syncing")
        return response.assignment

    async def heartbeat(self) -> None:
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._settings.group_instance_id,
        )
        response: HeartbeatResponse = await self._call(request, _HEARTBEAT, self._settings.session_timeout_ms)
        self._check(response.error_code, "heartbeat")

    async def commit(self, offsets: Offsets, committer: Committer) -> None:
        request = commit_request(self.group, offsets, committer)
        response = await self._call(request, OFFSET_COMMIT)
        try:
            check_commit(response, self.group)
        except BrokerError as failure:
            self._check(failure.code, failure.about)

    async def leave(self) -> None:
        """A static member stays: whoever comes back with its name takes its place. Nobody is looked for to be told."""
        if not self.member_id or self._coordinator is None or self._settings.group_instance_id is not None:
            return
        if self._waits_for_others:
            # A join that was cancelled is still unanswered, and what is sent behind it would wait for it.
            (await self._cluster.connection(self._coordinator)).close()
        request = LeaveGroupRequest(group_id=self.group, members=[MemberIdentity(member_id=self.member_id)])
        self.forget()
        response: LeaveGroupResponse = await self._call(request, _LEAVE, self._settings.session_timeout_ms)
        self._check(response.error_code, "leaving")

    async def _call_and_wait(self, request: Message, versions: Versions) -> Any:
        """For what is answered when all members have sent theirs."""
        self._waits_for_others = True
        try:
            patience_ms = self._settings.rebalance_timeout_ms + _JOIN_GRACE_MS
            answer = await self._call(request, versions, patience_ms, f"other members of group {self.group}")
        except TidelogError:
            self._waits_for_others = False
            raise
        self._waits_for_others = False
        return answer

    async def _call(
        self, request: Message, versions: Versions, timeout_ms: float | None = None, waits_for: str = ""
    ) -> Any:
        if self._coordinator is None:
            self._coordinator = (await find_coordinators(self._cluster, [self.group]))[self.group]
        try:
            return await self._cluster.call(
                request, to=self._coordinator, versions=versions, timeout_ms=timeout_ms, waits_for=waits_for
            )
        except ConnectionClosedError:
            self._coordinator = None
            raise
        except TidelogError as failure:
            if failure.code is not ErrorCode.BROKER_NOT_AVAILABLE:
                raise
            self._coordinator = None
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {self.group}", str(failure)) from failure

    def _check(self, code: int, about: str) -> None:
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self._coordinator = None
        check(code, f"{about} in group {self.group}")
