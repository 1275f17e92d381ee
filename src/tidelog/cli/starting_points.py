"""Where `tidelog consume` begins: found at once in partitions that have a leader, in the others as soon as they do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from tidelog.client.cluster import Cluster
from tidelog.client.errors import BrokerError, DeadlineError, UnknownTopicError, last_cause, named
from tidelog.client.waits import OwnWaits
from tidelog.errors import ErrorCode, TidelogError
from tidelog.types import Offset, TopicPartition

Find = Callable[[Sequence[TopicPartition]], Awaitable[dict[TopicPartition, Offset]]]
"""Asks the leaders once. Who is left out of what it returns has nothing to read."""


class StartingPoints:
    """Looks for all of them, beside the reader who takes what is found.

    Always: partitions of one leader do not wait for those of another, nor for those without one. What could not be
    found is looked for again, after metadata was learnt: `patience_ms` long, or for ever.
    """

    def __init__(
        self, cluster: Cluster, partitions: Iterable[TopicPartition], find: Find, patience_ms: float | None
    ) -> None:
        self._cluster = cluster
        self._find = find
        self._patience_ms = patience_ms
        self._unfound = dict.fromkeys(partitions)
        self._causes: dict[TopicPartition, TidelogError] = {}
        """Why a partition has to wait."""
        self._alone: set[TopicPartition] = set()
        """Asked for with others of its leader, one of which failed. From then on each is asked for by itself."""
        self._asking: dict[asyncio.Task[None], Sequence[TopicPartition]] = {}
        self._found: dict[TopicPartition, Offset] = {}
        self._failure: Exception | None = None
        self._news = asyncio.Event()
        self._waits = OwnWaits(cluster.waits)
        self._rounds = 0
        self._unknown_since: float | None = None
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._ask(list(self._unfound))
        self._seeking = self._loop.create_task(self._seek())

    @property
    def are_missing(self) -> bool:
        """Whether more may be found."""
        return bool(self._unfound or self._found)

    async def next(self) -> dict[TopicPartition, Offset]:
        """What was found since the last call; waits for it. DeadlineError if the time is over for what is left."""
        await self._news.wait()
        self._news.clear()
        found, self._found = self._found, {}
        if not found and self._failure is not None:
            raise self._failure
        if self._failure is not None:
            self._news.set()
        return found

    def close(self) -> None:
        self._seeking.cancel()
        for task in self._asking:
            task.cancel()
        self._waits.clear()

    # Looking

    async def _seek(self) -> None:
        while self._unfound and self._failure is None:
            under_way = {partition for asked in self._asking.values() for partition in asked}
            resting = [partition for partition in self._unfound if partition not in under_way]
            if not resting:
                await asyncio.wait(self._asking, return_when=asyncio.FIRST_COMPLETED)
                continue
            try:
                self._note(resting)
                self._check_time(resting)
                await self._learn(resting)
            except Exception as failure:  # of any kind: the reader would wait for ever
                self._fail(failure)
            else:
                self._ask(resting)

    def _ask(self, partitions: Sequence[TopicPartition]) -> None:
        groups: dict[object, list[TopicPartition]] = {}
        for partition in partitions:
            leader = self._cluster.metadata.leader(partition)
            if leader is None:
                self._causes[partition] = BrokerError(
                    ErrorCode.LEADER_NOT_AVAILABLE, str(partition), "it has no leader"
                )
            else:
                groups.setdefault(partition if partition in self._alone else leader, []).append(partition)
        for group in groups.values():
            task = self._loop.create_task(self._ask_for(group))
            self._asking[task] = group
            task.add_done_callback(self._asking.pop)

    async def _ask_for(self, partitions: Sequence[TopicPartition]) -> None:
        try:
            found = await self._find(partitions)
        except TidelogError as failure:
            cause = last_cause(failure)
            if isinstance(cause, TidelogError) and not _may_pass(cause):
                self._fail(failure)
            self._alone.update(partitions)
            self._causes.update(dict.fromkeys(partitions, failure if not isinstance(cause, TidelogError) else cause))
        except Exception as failure:
            self._fail(failure)
        else:
            for partition in partitions:
                self._unfound.pop(partition, None)
                self._causes.pop(partition, None)
            if not self._causes:
                self._waits.clear()
            self._found.update(found)
            self._news.set()

    def _fail(self, failure: Exception) -> None:
        self._failure = self._failure or failure
        self._news.set()

    # Waiting

    def _note(self, resting: Sequence[TopicPartition]) -> None:
        self._waits.failed("start", f"fetch of {named(resting)}", self._cause(resting), self._began_s)

    def _cause(self, resting: Sequence[TopicPartition]) -> TidelogError:
        """One for all; those without a leader are named together."""
        metadata = self._cluster.metadata
        leaderless = [partition for partition in resting if metadata.leader(partition) is None]
        if len(leaderless) > 1:
            return BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, named(leaderless), "they have no leader")
        return self._causes[(leaderless or resting)[0]]

    def _check_time(self, resting: Sequence[TopicPartition]) -> None:
        if self._patience_ms is not None and self._loop.time() - self._began_s > self._patience_ms / 1000:
            raise DeadlineError.of(f"fetch of {named(resting)}", self._patience_ms, self._cause(resting))

    async def _learn(self, resting: Sequence[TopicPartition]) -> None:
        """After a rest. A topic that stays unknown is an error in the end."""
        self._rounds += 1
        settings = self._cluster.settings
        await asyncio.sleep(settings.backoff_s(self._rounds, self._cluster.random))
        topics = dict.fromkeys(partition.topic for partition in resting)
        try:
            await self._cluster.refresh_once(topics, elsewhere=self._rounds > 1)
        except TidelogError as failure:
            self._causes.update(dict.fromkeys(resting, failure))
            return
        errors, now_s = self._cluster.metadata.errors, self._loop.time()
        unknown = next((name for name in topics if errors.get(name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), None)
        if unknown is None:
            self._unknown_since = None
        elif self._unknown_since is None:
            self._unknown_since = now_s
        elif now_s - self._unknown_since > settings.request_timeout_ms / 1000:
            raise UnknownTopicError(unknown)


def _may_pass(failure: TidelogError) -> bool:
    return failure.code.retriable or failure.code == ErrorCode.BROKER_NOT_AVAILABLE
