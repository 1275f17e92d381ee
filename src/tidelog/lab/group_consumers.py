"""The consumers of a group story, each a process on a host of its own, and what can be seen of them from outside.

A `Reader` is the production member: told to start, and perhaps to leave, it does the rest by itself. A
`ScriptedConsumer` sends one request at a time, when the story says so, for moments that a member by itself lets nobody
see.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator, Mapping
from contextvars import Context, copy_context

from tidelog.client.cluster import Cluster
from tidelog.client.consumer_protocol import decode_assignment, encode_subscription
from tidelog.client.group_offsets import Committer, Offsets
from tidelog.client.membership import Member
from tidelog.client.seat import MemberSettings, Seat
from tidelog.errors import ErrorCode, TidelogError
from tidelog.groups.assignors import RANGE, Subscription
from tidelog.lab.broker import PORT
from tidelog.lab.cluster import IMPATIENT, TOPIC
from tidelog.lab.world import SimHost
from tidelog.types import Offset, TopicPartition
from tidelog.wire.messages.groups import JoinGroupResponse

GROUP = "g"
SETTINGS = MemberSettings(session_timeout_ms=6_000, heartbeat_interval_ms=2_000)
"""As is advised (S8.5)."""


class WatchedSeat(Seat):
    """A member's requests, with a note of the one that waits and of what the last ones of this generation brought."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, GROUP, SETTINGS)
        self.waits_for = ""
        self.last_heartbeat = ""
        self.last_commit = ""

    async def join(self, protocols: Mapping[str, bytes]) -> JoinGroupResponse:
        with self._waiting("JoinGroup"):
            response = await super().join(protocols)
        self.last_heartbeat = self.last_commit = ""
        return response

    async def sync(self, protocol: str | None, assignments: Mapping[str, bytes]) -> bytes:
        with self._waiting("SyncGroup"):
            return await super().sync(protocol, assignments)

    async def heartbeat(self) -> None:
        try:
            await super().heartbeat()
            self.last_heartbeat = "ok"
        except TidelogError as failure:
            self.last_heartbeat = failure.code.name
            raise

    async def commit(self, offsets: Offsets, committer: Committer) -> None:
        told = ", ".join(f"{partition} at {offset}" for partition, offset in offsets.items())
        try:
            with self._waiting("OffsetCommit"):
                await super().commit(offsets, committer)
            self.last_commit = f"{told}: ok"
        except TidelogError as failure:
            self.last_commit = f"{told}: {failure.code.name}"
            raise

    async def leave(self) -> None:
        self.last_heartbeat = self.last_commit = ""
        with self._waiting("LeaveGroup"):
            await super().leave()

    @contextlib.contextmanager
    def _waiting(self, request: str) -> Iterator[None]:
        self.waits_for = request
        try:
            yield
        finally:
            self.waits_for = ""


class Consumer:
    """A process that reads the topic for the group."""

    def __init__(self, host: SimHost) -> None:
        self.name = host.name
        self.seat: WatchedSeat | None = None
        """None until it has found a broker."""
        self.begins: dict[int, Offset] = {}
        """Where it was told to go on with the partitions it got last."""
        self.is_dead = False
        self._host = host
        self._process: Context | None = None
        self._requests: list[asyncio.Task[None]] = []

    @property
    def held(self) -> tuple[int, ...]:
        """The partitions that it reads."""
        raise NotImplementedError

    async def _live(self) -> None:
        raise NotImplementedError

    @property
    def is_running(self) -> bool:
        return self._host.process is not None

    def start(self) -> None:
        self._host.start(self._live())

    def kill(self) -> None:
        self.is_dead = True
        self._host.kill()

    def _do(self, request: Awaitable[None]) -> None:
        """In its process. A refusal is in the notes of its seat, and is no failure of the story."""

        async def do() -> None:
            with contextlib.suppress(TidelogError):
                await request

        self._requests.append(asyncio.create_task(do(), context=self._process))

    async def _connect(self) -> Cluster:
        """Member ids begin with the name of the client, and shares are dealt out in their order."""
        self._process = copy_context()
        settings = IMPATIENT._replace(client_id=self.name)
        return await Cluster.open([("b1", PORT)], random=self._host.random, settings=settings)


class Reader(Consumer):
    """A member as a program has it."""

    def __init__(self, host: SimHost) -> None:
        super().__init__(host)
        self._member: Member | None = None
        self._told_to_leave: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def held(self) -> tuple[int, ...]:
        return () if self._member is None else _numbers(self._member.assignment.partitions)

    def commit(self, partition: int, offset: Offset) -> None:
        assert self._member is not None
        self._do(self._member.commit({TopicPartition(TOPIC, partition): offset}))

    def leave(self) -> None:
        """As when a program ends in good order."""
        if not self._told_to_leave.done():
            self._told_to_leave.set_result(None)

    async def _live(self) -> None:
        async with await self._connect() as cluster:
            member = self._member = Member(cluster, GROUP, [TOPIC], settings=SETTINGS, on_assigned=self._find_place)
            member._seat = self.seat = WatchedSeat(member._cluster)
            async with member:
                await self._told_to_leave

    async def _find_place(self, partitions: tuple[TopicPartition, ...]) -> None:
        assert self._member is not None
        found = await self._member.committed(partitions)
        self.begins = {partition.partition: place.offset for partition, place in found.items()}


class ScriptedConsumer(Consumer):
    """One request at a time, and nothing by itself. It never deals out shares, so somebody else has to lead."""

    def __init__(self, host: SimHost) -> None:
        super().__init__(host)
        self._held: tuple[int, ...] = ()

    @property
    def held(self) -> tuple[int, ...]:
        return self._held

    def join(self) -> None:
        self._do(self._join())

    def sync(self) -> None:
        self._do(self._sync())

    def heartbeat(self) -> None:
        self._do(self._at().heartbeat())

    def commit(self, partition: int, offset: Offset, generation: int | None = None) -> None:
        """In the generation it was told last, or in one before."""
        committer = self._at().committer
        if generation is not None:
            committer = committer._replace(generation=generation)
        self._do(self._at().commit({TopicPartition(TOPIC, partition): offset}, committer))

    async def _live(self) -> None:
        self.seat = WatchedSeat(await self._connect())
        await asyncio.get_running_loop().create_future()

    async def _join(self) -> None:
        """It gives up what it holds first, as members do whose assignor is not cooperative."""
        self._held = ()
        protocols = {RANGE.name: encode_subscription(Subscription([TOPIC]))}
        try:
            await self._at().join(protocols)
        except TidelogError as failure:
            if failure.code is not ErrorCode.MEMBER_ID_REQUIRED:
                raise
            await self._at().join(protocols)

    async def _sync(self) -> None:
        self._held = _numbers(decode_assignment(await self._at().sync(RANGE.name, {})))

    def _at(self) -> WatchedSeat:
        assert self.seat is not None, f"{self.name} has not found a broker yet"
        return self.seat


def _numbers(partitions: tuple[TopicPartition, ...] | list[TopicPartition]) -> tuple[int, ...]:
    return tuple(partition.partition for partition in partitions)
