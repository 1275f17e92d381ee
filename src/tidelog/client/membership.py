"""Being a member of a classic consumer group (S8): joined, kept by heartbeats, and left.

    async with Member(cluster, "billing", ["orders"]) as member:
        while True:
            assignment = await member.next_assignment()
            ...                                 # read assignment.partitions until the next one comes
            await member.commit({partition: offset})

There is no poll: a task of its own sends the heartbeats and joins again when the group changes, whatever the reader
does meanwhile. What the reader must do before others get its partitions, it does in `on_revoked`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import chain
from types import TracebackType
from typing import NamedTuple

from tidelog.client.cluster import Cluster
from tidelog.client.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tidelog.client.errors import BrokerError
from tidelog.client.group_offsets import Committed, Offsets, committed_offsets
from tidelog.client.groups import describe_group
from tidelog.client.seat import DEFAULT_MEMBER, MemberSettings, Seat
from tidelog.errors import ErrorCode, TidelogError
from tidelog.groups.assignors import NO_GENERATION, RANGE, STICKY, Assignor, Subscription
from tidelog.types import TopicPartition
from tidelog.wire.messages.groups import JoinGroupResponse

Partitions = tuple[TopicPartition, ...]
Listener = Callable[[Partitions], Awaitable[None]]

_OUT_OF_GROUP = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
"""The group went on without this member: others may have its partitions already."""


class Assignment(NamedTuple):
    """What a member may read, and in which generation of its group. Sorted."""

    generation: int = NO_GENERATION
    partitions: Partitions = ()


async def _ignore(partitions: Partitions) -> None:
    pass


class Member:
    """One member. Entered, it has its first assignment; left, it has given everything up and is out of the group.

    It has connections of its own, for a join waits for the others and holds up what is behind it.
    `on_assigned` is called with what came, `on_revoked` with what has to be given up while it is still held,
    `on_lost` with what others may have by now; an exception in one of them ends the member. After a failure that no
    further try can mend, `assignment`, `next_assignment`, `commit` and `committed` raise it.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topics: Iterable[str],
        *,
        assignors: Sequence[Assignor] = (RANGE,),
        settings: MemberSettings = DEFAULT_MEMBER,
        on_assigned: Listener = _ignore,
        on_revoked: Listener = _ignore,
        on_lost: Listener = _ignore,
    ) -> None:
        addresses = [node.address for node in cluster.metadata.brokers.values()]
        self._cluster = Cluster(
            addresses,
            random=cluster.random,
            settings=cluster.settings,
            cluster_id=cluster.metadata.cluster_id,
            waits=cluster.waits,
        )
        self._topics = sorted(dict.fromkeys(topics))
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._is_cooperative = all(assignor.is_cooperative for assignor in assignors)
        self._settings = settings
        self._on_assigned, self._on_revoked, self._on_lost = on_assigned, on_revoked, on_lost
        self._seat = Seat(self._cluster, group, settings)
        self._assignment = Assignment()
        self._held = Assignment()
        """What it had last, for the sticky assignor: at a join it may hold nothing any more."""
        self._counts: dict[str, int] = {}
        """Partitions of all topics of the group, if this member leads it."""
        self._heartbeat_fails = object()
        """The key in `Cluster.waits`."""
        self._news = asyncio.Event()
        self._rebalancing = asyncio.Event()
        self._is_out = False
        self._failure: BaseException | None = None
        self._life: asyncio.Task[None] | None = None

    # What the reader sees

    @property
    def assignment(self) -> Assignment:
        """Nothing while the group rebalances, unless its assignors are cooperative."""
        self._raise_failure()
        return self._assignment

    @property
    def member_id(self) -> str:
        return self._seat.member_id

    async def next_assignment(self) -> Assignment:
        """The assignment, once it is another than this returned before. For one reader."""
        await self._news.wait()
        self._raise_failure()
        self._news.clear()
        return self._assignment

    async def commit(self, offsets: Offsets) -> None:
        """Of partitions it holds, as the member of the generation it is in now.

        BrokerError, which the coordinator answers too, if the group has gone on: REBALANCE_IN_PROGRESS,
        ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID. It is not tried again: who has the partitions now goes on from the
        offset before.
        """
        self._raise_failure()
        strange = next((partition for partition in offsets if partition not in self._assignment.partitions), None)
        if strange is not None:
            about = f"commit of {strange} by group {self._seat.group}"
            raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS, about, "it is not assigned to this member")
        committer = self._seat.committer
        await self._cluster.retrying(
            lambda: self._seat.commit(offsets, committer), f"commit by group {self._seat.group}"
        )

    async def committed(self, partitions: Iterable[TopicPartition]) -> Committed:
        """Where to begin with them; those not in it have no offset yet."""
        self._raise_failure()
        return await committed_offsets(self._cluster, self._seat.group, partitions, require_stable=True)

    async def __aenter__(self) -> Member:
        self._life = asyncio.create_task(self._live())
        self._life.add_done_callback(self._ended)
        try:
            await self._news.wait()
            self._raise_failure()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give up everything, as for a rebalance, and leave; a coordinator that does not answer finds out itself."""
        try:
            if self._life is not None:
                self._life.cancel()
                await asyncio.gather(self._life, return_exceptions=True)
            if self._failure is None and self._assignment.partitions:
                async with self._heartbeats():
                    await self._give_up(())
            with suppress(TidelogError):
                await self._seat.leave()
        finally:
            self._cluster.close()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # Its life

    async def _live(self) -> None:
        """Join, hold the place until the group changes, and again."""
        while True:
            partitions = await self._join()
            async with self._heartbeats():
                must_join_again = await self._take(partitions)
                if not must_join_again:
                    await self._rebalancing.wait()
                self._raise_failure()
                if self._is_out:
                    await self._lose()
                elif not self._is_cooperative:
                    await self._give_up(())

    def _ended(self, life: asyncio.Task[None]) -> None:
        if not life.cancelled():
            self._failure = life.exception()
            self._news.set()

    async def _join(self) -> Partitions:
        """Join and sync until both succeed in one generation."""
        failures, began_s = 0, asyncio.get_running_loop().time()
        waits, waiting = self._cluster.waits, object()
        try:
            while True:
                self._rebalancing.clear()
                self._is_out = False
                try:
                    return await self._join_once()
                except TidelogError as failure:
                    code = failure.code
                    if code is ErrorCode.MEMBER_ID_REQUIRED:
                        continue
                    if code in _OUT_OF_GROUP:
                        self._step_out(code)
                        await self._lose()
                    elif code is not ErrorCode.REBALANCE_IN_PROGRESS and not code.retriable:
                        raise
                    waits.failed(waiting, f"joining group {self._seat.group}", failure, began_s)
                failures += 1
                await asyncio.sleep(self._cluster.settings.backoff_s(failures, self._cluster.random))
        finally:
            waits.over(waiting)

    async def _join_once(self) -> Partitions:
        subscription = Subscription(self._topics, self._assignment.partitions, self._held.generation)
        protocols = {
            name: encode_subscription(subscription, self._held.partitions if assignor is STICKY else None)
            for name, assignor in self._assignors.items()
        }
        self._counts = {}
        joined = await self._seat.join(protocols)
        members = self._subscriptions(joined) if joined.leader == joined.member_id else {}
        shares = await self._shares(joined, members)
        assignments = (
            {} if joined.skip_assignment else {name: encode_assignment(share) for name, share in shares.items()}
        )
        partitions = tuple(decode_assignment(await self._seat.sync(joined.protocol_name, assignments)))
        if joined.skip_assignment and members and not await self._is_still_right(members, shares):
            self._rebalancing.set()
        return partitions

    def _subscriptions(self, joined: JoinGroupResponse) -> dict[str, Subscription]:
        assignor = self._assignors[joined.protocol_name or ""]
        return {
            member.member_id: decode_subscription(member.metadata, assignor, member.group_instance_id)
            for member in joined.members
        }

    async def _shares(
        self, joined: JoinGroupResponse, members: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        """The partitions of each member, as the leader assigns them now; nothing if another one leads."""
        if not members:
            return {}
        topics = sorted({topic for subscription in members.values() for topic in subscription.topics})
        self._counts = await self._partition_counts(topics)
        return self._assignors[joined.protocol_name or ""].assign(members, self._counts)

    async def _is_still_right(
        self, members: Mapping[str, Subscription], shares: Mapping[str, list[TopicPartition]]
    ) -> bool:
        """A static leader came back, and the assignment of before holds (KIP-814): it may be of other topics, of fewer
        partitions or for other subscriptions. It is right if it has each partition once, at one that wants its topic.
        """
        described = await describe_group(self._cluster, self._seat.group)
        stored = [(member.member_id, partition) for member in described.members for partition in member.assignment]
        return sorted(partition for _, partition in stored) == sorted(chain.from_iterable(shares.values())) and all(
            name in members and partition.topic in members[name].topics for name, partition in stored
        )

    async def _partition_counts(self, topics: Sequence[str]) -> dict[str, int]:
        await self._cluster.retrying(lambda: self._cluster.refresh_once(topics), "metadata", topics=None)
        known = self._cluster.metadata.topics
        return {topic: len(known[topic].partitions) if topic in known else 0 for topic in topics}

    # Taking and giving up

    async def _take(self, partitions: Partitions) -> bool:
        """Hold these from now on. True if some had to be given up, and all join again so that others get them."""
        before = self._assignment.partitions
        gone = tuple(partition for partition in before if partition not in partitions)
        come = tuple(partition for partition in partitions if partition not in before)
        if gone:
            await self._give_up(tuple(partition for partition in before if partition in partitions))
        self._assignment = self._held = Assignment(self._seat.generation, partitions)
        await self._on_assigned(come)
        self._news.set()
        return bool(gone)

    async def _give_up(self, kept: Partitions) -> None:
        gone = tuple(partition for partition in self._assignment.partitions if partition not in kept)
        if gone:
            await self._on_revoked(gone)
            self._assignment = self._assignment._replace(partitions=kept)
            self._news.set()

    async def _lose(self) -> None:
        lost, self._assignment = self._assignment.partitions, Assignment()
        self._held = Assignment()
        if lost:
            self._news.set()
            await self._on_lost(lost)

    # Heartbeats

    @asynccontextmanager
    async def _heartbeats(self) -> AsyncIterator[None]:
        """They go on while listeners are called, however long those take."""
        beating = asyncio.create_task(self._beat())
        beating.add_done_callback(self._stopped_beating)
        try:
            await asyncio.sleep(0)  # it begins, for what is cancelled before that was never awaited
            yield
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            self._cluster.waits.over(self._heartbeat_fails)

    def _stopped_beating(self, beating: asyncio.Task[None]) -> None:
        if not beating.cancelled() and beating.exception() is not None:
            self._failure = beating.exception()
            self._rebalancing.set()

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        interval_s = self._settings.heartbeat_interval_ms / 1000
        next_look = loop.time() + self._settings.metadata_max_age_ms / 1000
        failures = 0
        while not self._is_out:
            backoff_s = self._cluster.settings.backoff_s(failures, self._cluster.random) if failures else interval_s
            await asyncio.sleep(min(interval_s, backoff_s))
            try:
                await self._seat.heartbeat()
                failures = 0
                self._cluster.waits.over(self._heartbeat_fails)
                if loop.time() >= next_look or 0 in self._counts.values():
                    next_look = loop.time() + self._settings.metadata_max_age_ms / 1000
                    await self._look_for_growth()
            except TidelogError as failure:
                code = failure.code
                if code in _OUT_OF_GROUP:
                    self._step_out(code)
                elif code is ErrorCode.REBALANCE_IN_PROGRESS:
                    self._rebalancing.set()
                elif code.retriable:
                    failures += 1
                    about = f"heartbeat in group {self._seat.group}"
                    self._cluster.waits.failed(self._heartbeat_fails, about, failure, loop.time())
                else:
                    raise

    def _step_out(self, code: ErrorCode) -> None:
        self._is_out = True
        self._rebalancing.set()
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._seat.forget()
        else:
            self._seat.forget_generation()

    async def _look_for_growth(self) -> None:
        """S8.6: the leader begins a rebalance when a topic has got more partitions.

        A topic that was unknown when the leader assigned partitions is looked for with each heartbeat.
        """
        if self._counts and await self._partition_counts(list(self._counts)) != self._counts:
            self._rebalancing.set()
