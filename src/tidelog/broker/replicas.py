"""All replicas that live on this broker, and what the controller tells it about them."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from tidelog.broker.fetchers import Fetchers
from tidelog.broker.isr_changes import IsrChanges
from tidelog.broker.pacing import Pace
from tidelog.broker.partition import NO_LEADER, Partition, RequestError
from tidelog.broker.standing import Standing
from tidelog.broker.storage import Storage
from tidelog.broker.waiting import AnswerTime
from tidelog.broker.write_rules import WriteRules
from tidelog.config.topic import TopicConfig
from tidelog.controller.elr_tags import elr_of
from tidelog.controller.image import EPOCH_DURING_DELETE, INITIAL_LEADER_EPOCH
from tidelog.controller.stop_tags import UNREADABLE_ID
from tidelog.controller.topics import is_valid_name
from tidelog.errors import ErrorCode, StorageError, TidelogError
from tidelog.log.directory import LogDirectory
from tidelog.log.log import Log
from tidelog.log.meta import read_topic_id, write_topic_id
from tidelog.log.producer_room import ProducerRoom
from tidelog.log.strays import Stray
from tidelog.ports import Clock
from tidelog.replication.leader import Leader
from tidelog.types import BrokerId, Epoch, TopicPartition
from tidelog.wire import ZERO_UUID
from tidelog.wire.messages.controller import LeaderAndIsrPartitionState, LeaderAndIsrTopicState
from tidelog.wording import counted, listed

_log = logging.getLogger(__name__)


_AT_A_TIME = 32
"""Partitions, or topics, that are worked on together."""

_Role: TypeAlias = tuple[TopicPartition, bytes, LeaderAndIsrPartitionState]
"""A partition, its topic's id, and what the controller says of it."""


class Unwanted(NamedTuple):
    """A replica that this broker is to give up."""

    name: TopicPartition
    leader_epoch: Epoch
    delete: bool
    topic_id: bytes = ZERO_UUID
    """ZERO_UUID if the controller does not tell it."""


class Replicas:
    """Partitions by name. Controller requests are applied one after the other."""

    def __init__(
        self,
        broker_id: BrokerId,
        storage: Storage,
        log_config_of: Callable[[str], TopicConfig],
        rules_of: Callable[[str], WriteRules],
        is_known: Callable[[str, int], bool],
        refresh_topic: Callable[[str], Awaitable[object]],
        fetchers: Fetchers,
        isr_changes: IsrChanges,
        alive: Callable[[], Container[BrokerId]],
        max_lag_ms: Callable[[], int],
        clock: Clock,
        role_changed: Callable[[Partition], None],
        standing: Standing,
    ) -> None:
        self.partitions: dict[TopicPartition, Partition] = {}
        self._broker_id = broker_id
        self._storage = storage
        self._log_config_of = log_config_of
        self._rules_of = rules_of
        self._is_known = is_known
        self._refresh_topic = refresh_topic
        """Has a topic's settings read before its first log is made here."""
        self._fetchers = fetchers
        self._isr_changes = isr_changes
        self._alive = alive
        self._max_lag_ms = max_lag_ms
        self._clock = clock
        self._role_changed = role_changed
        """Told when a replica begins to lead or ceases to."""
        self._standing = standing
        self.answer_time = AnswerTime(clock)
        self.followers_seen: dict[BrokerId, int] = {}
        """When each follower last fetched from here."""
        self._one_at_a_time = asyncio.Lock()
        self.producer_room: ProducerRoom | None = None
        """The bounds for new producers in all logs that are opened from now on."""
        self._lives = 0
        self._strays_made: list[Stray] = []
        """Not told yet."""
        self._unreadable: dict[str, str] = {}
        """Topics that cannot be served since their settings could not be read, and why."""
        self._begun_empty: set[TopicPartition] = set()
        """Logs that were made here for partitions that are not new, and that have followed no leader yet."""
        self._failures: list[tuple[TopicPartition, TidelogError]] = []
        self._led_empty: list[TopicPartition] = []
        """Of the request that is being served, for the log."""
        self._opening: Counter[str] = Counter()
        """How many logs are just being made in each directory."""

    # Finding

    def get(self, topic: str, index: int) -> Partition:
        """The partition if it is here; else what to tell who asks for it."""
        partition = self.partitions.get((topic, index))  # type: ignore[call-overload]
        if partition is not None:
            if partition.log.failed is not None:
                raise StorageError(f"{partition.name} is offline: {partition.log.failed}")
            found: Partition = partition
            return found
        if self._is_known(topic, index):
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def leading(self, topic: str, index: int) -> Partition:
        partition: Partition | None = self.partitions.get((topic, index))  # type: ignore[call-overload]
        if partition is None or partition.log.failed is not None:
            partition = self.get(topic, index)  # says why not
        if partition.leader is None:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    @property
    def producer_count(self) -> int:
        return sum(len(partition.log.producers) for partition in self.partitions.values())

    def led_producer_counts(self) -> dict[TopicPartition, int]:
        """Of the partitions that are led here and remember any producer."""
        led = ((name, len(partition.log.producers)) for name, partition in self.partitions.items() if partition.leads)
        return {name: count for name, count in led if count}

    def led_log(self, name: TopicPartition) -> Log | None:
        partition = self.partitions.get(name)
        return partition.log if partition is not None and partition.leads else None

    def of_topic(self, topic: str) -> Iterable[Partition]:
        return [partition for name, partition in self.partitions.items() if name.topic == topic]

    # What the controller says

    async def apply(
        self, topics: Iterable[LeaderAndIsrTopicState], *, names_all: bool = False
    ) -> dict[TopicPartition, ErrorCode]:
        """Lead or follow as LeaderAndIsr says. What one that `names_all` does not name becomes a stray, and is kept."""
        wanted = [
            (TopicPartition(topic.topic_name, state.partition_index), topic.topic_id, state)
            for topic in topics
            for state in topic.partition_states
        ]
        life = self._lives
        async with self._one_at_a_time:
            if names_all:
                await self._set_strays_aside({name for name, _, _ in wanted})
            # Those that are here already do not wait for the settings of those that are not.
            known = [role for role in wanted if role[0] in self.partitions]
            codes = await self._apply_all(known, life, names_all)
            new = [role for role in wanted if role[0] not in codes]
            unreadable = await self._read_settings(name.topic for name, _, _ in new)
            codes |= {name: ErrorCode.LEADER_NOT_AVAILABLE for name, _, _ in new if name.topic in unreadable}
            try:
                return codes | await self._apply_all([role for role in new if role[0] not in codes], life, names_all)
            finally:
                self._tell()

    def _tell(self) -> None:
        """What one request of the controller has led to, in a few lines however many partitions it names."""
        self._tell_of_strays()
        failures, self._failures = self._failures, []
        led_empty, self._led_empty = self._led_empty, []
        if failures:
            texts = listed(failures, lambda failed: f"{failed[0]}: {failed[1]}")
            _log.warning("%s cannot be taken over: %s", counted(len(failures), "partition"), texts)
        if led_empty:
            _log.error(
                "all records of %s may be lost: broker %d leads with an empty log what was led before, since the logs "
                "were not in its log directories. If the old disk or a backup can be read, stop the broker and put "
                "the logs back: %s",
                counted(len(led_empty), "partition"),
                self._broker_id,
                listed(led_empty, most=20),
            )

    async def _apply_all(self, roles: Sequence[_Role], life: int, names_all: bool) -> dict[TopicPartition, ErrorCode]:
        """Begun some at a time: the loop is given back in between. None waits for the device of another."""
        begun: list[asyncio.Future[list[ErrorCode]]] = []
        try:
            for start in range(0, len(roles), _AT_A_TIME):
                if begun:
                    await asyncio.sleep(0)
                part = roles[start : start + _AT_A_TIME]
                begun.append(asyncio.gather(*(self._apply_one(*role, life, names_all) for role in part)))
            found = itertools.chain.from_iterable(await asyncio.gather(*begun))
        except asyncio.CancelledError:
            for part_begun in begun:
                part_begun.cancel()
            raise
        return {name: code for (name, _, _), code in zip(roles, found, strict=True)}

    async def _read_settings(self, topics: Iterable[str]) -> set[str]:
        """Read the settings of topics whose first log here is to be opened. Returns the topics whose settings cannot be
        read: the controller tells of them again, and the others are served meanwhile."""
        names = {topic: None for topic in dict.fromkeys(topics) if is_valid_name(topic)}
        failures: list[str | None] = []
        for start in range(0, len(names), _AT_A_TIME):
            part = itertools.islice(names, start, start + _AT_A_TIME)
            failures += await asyncio.gather(*map(self._read_settings_of, part))
        self._unreadable = {topic: reason for topic, reason in self._unreadable.items() if topic not in names}
        for topic, reason in zip(names, failures, strict=True):
            if reason is not None:
                self._unreadable[topic] = reason
        return {topic for topic in names if topic in self._unreadable}

    async def _read_settings_of(self, topic: str) -> str | None:
        """Why they cannot be read, said in the log once."""
        try:
            await self._refresh_topic(topic)
        except TidelogError as failure:
            reason = str(failure)
            if self._unreadable.get(topic) != reason:
                _log.error("topic %s is not served here yet, its settings cannot be read: %s", topic, reason)
            return reason
        return None

    async def _apply_one(
        self, name: TopicPartition, topic_id: bytes, state: LeaderAndIsrPartitionState, life: int, names_all: bool
    ) -> ErrorCode:
        if not is_valid_name(name.topic) or name.partition < 0:
            return ErrorCode.INVALID_TOPIC_EXCEPTION  # no name for a directory either
        try:
            if self._broker_id not in state.replicas:
                raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            partition = self.partitions.get(name)
            if partition is None:
                partition = await self._open(name, topic_id, is_new=state.is_new)
            if partition.log.failed is not None:
                raise partition.log.failed
            if topic_id not in (ZERO_UUID, partition.topic_id):
                if not names_all:
                    raise RequestError(ErrorCode.INCONSISTENT_TOPIC_ID)
                await self._set_aside(name)  # of another topic of this name
                partition = await self._open(name, topic_id, is_new=state.is_new)
            if state.leader_epoch < partition.leader_epoch:
                raise RequestError(ErrorCode.STALE_CONTROLLER_EPOCH)
            await self._take_role(partition, state, life)
        except TidelogError as failure:
            self._failures.append((name, failure))
            return failure.code
        return ErrorCode.NONE

    async def _take_role(self, partition: Partition, state: LeaderAndIsrPartitionState, life: int) -> None:
        is_new_term = state.leader_epoch != partition.leader_epoch
        if not is_new_term and state.partition_epoch < partition.partition_epoch:
            return  # of before the last change of the ISR
        if state.leader == self._broker_id and self._broker_id not in state.isr:
            raise RequestError(ErrorCode.INVALID_REQUEST, "a leader is in its own ISR")
        # A new controller tells again what is known. That does not settle what this leader has asked for: it may still
        # be granted, and until then both sets count (S3.4).
        is_news = (state.partition_epoch, tuple(state.replicas)) != (partition.partition_epoch, partition.replicas)
        partition.controller_epoch = state.controller_epoch
        partition.partition_epoch = state.partition_epoch
        partition.replicas, partition.isr = tuple(state.replicas), tuple(state.isr)
        partition.is_reassigned = bool(state.adding_replicas or state.removing_replicas)
        partition.leader_id = state.leader
        if state.leader != self._broker_id:
            await self._follow(partition, state, is_new_term)
            return
        log = partition.log
        if partition.leader is not None and not is_new_term:
            if is_news:
                partition.isr_changed(state.isr, state.replicas, elr=elr_of(state))
            return
        partition.pause()
        await self._fetchers.release(partition)
        await log.flush_if_due()  # what it counts for HW, and so shows to consumers, is on the device (S3.3)
        log.begin_epoch(state.leader_epoch)
        if life != self._lives:
            raise RequestError(ErrorCode.STALE_BROKER_EPOCH)
        partition.leader_epoch = state.leader_epoch
        if partition.name in self._begun_empty:
            self._begun_empty.discard(partition.name)
            if log.log_end_offset == 0 and state.leader_epoch > INITIAL_LEADER_EPOCH:
                self._led_empty.append(partition.name)
        partition.lead(
            Leader(
                self._broker_id,
                state.leader_epoch,
                state.replicas,
                state.isr,
                log.log_end_offset,
                log.high_watermark,
                alive=self._alive(),
                now_ms=self._clock.monotonic_ms(),
                max_lag_ms=self._max_lag_ms(),
                min_insync_replicas=partition.rules.min_insync_replicas,
                elr=elr_of(state),
                log_start_offset=log.log_start_offset,
            )
        )

    async def _follow(self, partition: Partition, state: LeaderAndIsrPartitionState, is_new_term: bool) -> None:
        """Copy from another leader, or from none while there is none."""
        if is_new_term or partition.leader is not None or not self._fetchers.is_following(partition, state.leader):
            partition.leader_epoch = state.leader_epoch
            partition.follow()
            await self._fetchers.release(partition)
            if state.leader >= 0:
                self._begun_empty.discard(partition.name)
            if state.leader >= 0 and partition.leader_epoch == state.leader_epoch:
                self._fetchers.follow(partition, state.leader, state.leader_epoch)

    async def _open(self, name: TopicPartition, topic_id: bytes, *, is_new: bool) -> Partition:
        """A found log, a stray of this topic that comes back, or a new one in the directory with the fewest.

        One that is not new and not found may be in a directory that is offline: an empty one in its place, or a stray
        of long ago, would lose records.
        """
        online = [directory for directory in self._storage.directories if directory.offline is None]
        holding = [directory for directory in online if name in directory.logs]
        if not online or (not holding and not is_new and self._storage.is_partly_offline):
            raise StorageError(f"the log of {name} may be in a log directory that is offline")
        strays = {directory: stray for directory in online if (stray := directory.stray_of(name, topic_id)) is not None}
        if not holding and not strays and not is_new:
            self._check_nameless_strays(name)
            self._begun_empty.add(name)
        if holding:
            directory = holding[0]  # the start has left no other one (Storage.open)
        elif strays:
            directory = max(strays, key=lambda one: strays[one].fullness)
        else:
            directory = min(online, key=lambda one: len(one.logs) + self._opening[one.path])
        self._opening[directory.path] += 1
        try:
            log = await directory.create(name, None if topic_id == ZERO_UUID else topic_id)
        finally:
            self._opening[directory.path] -= 1
        log.producer_room = self.producer_room
        log.config = self._log_config_of(name.topic)  # a found one was opened with what was known at the start
        partition = Partition(
            name,
            await self._topic_id_of(log, topic_id),
            log,
            self._rules_of(name.topic),
            self._isr_changes,
            self.followers_seen,
            self._role_changed,
            self._standing,
            self.answer_time,
        )
        self.partitions[name] = partition
        return partition

    def _check_nameless_strays(self, name: TopicPartition) -> None:
        """An empty log must not take the place of a stray that may be this very partition."""
        for stray in self._storage.strays:
            if stray.partition == name and stray.is_nameless:
                where = f"the stray {stray.path}, whose topic id is not known"
                raise StorageError(f"the log of {name} may be {where}; see `tidelog log strays`")

    async def _topic_id_of(self, log: Log, told: bytes) -> bytes:
        """The id of the log's topic. It is written before the log is served: a process that died while it made the log
        has left it without one, and then nothing would tell it from the log of another topic of that name."""
        disk, directory = self._storage.disk, log.directory
        written = await log.work.beside(lambda: read_topic_id(disk, directory))
        if written is None and told != ZERO_UUID:
            await log.work.run(lambda: write_topic_id(disk, directory, told))
        return told if written is None else written

    async def stop(self, unwanted: Sequence[Unwanted]) -> list[ErrorCode]:
        """StopReplica: these replicas are not wanted here any more. Stopped together they share their checkpoints."""
        async with self._one_at_a_time:
            return await asyncio.gather(*map(self._stop, unwanted))

    async def _stop(self, unwanted: Unwanted) -> ErrorCode:
        name, leader_epoch, delete, topic_id = unwanted
        partition = self.partitions.get(name)
        if partition is not None:
            if 0 <= leader_epoch < partition.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            await self._stop_serving(partition)
        if not delete:
            return ErrorCode.NONE
        if topic_id == ZERO_UUID and partition is not None:
            topic_id = partition.topic_id
        return await self._delete(name, topic_id if leader_epoch == EPOCH_DURING_DELETE else ZERO_UUID)

    async def _stop_serving(self, partition: Partition) -> None:
        partition.leader_id = NO_LEADER
        partition.follow()
        await self._fetchers.release(partition)

    async def _delete(self, name: TopicPartition, deleted_topic: bytes) -> ErrorCode:
        """With the strays of the topic that is deleted, by its id. They are left to the operator if the partition moved
        or the id is not known (ZERO_UUID): they may be all that is left of another topic of this name."""
        holding = [directory for directory in self._storage.directories if name in directory.logs]
        if any(directory.offline is not None for directory in holding):
            return ErrorCode.KAFKA_STORAGE_ERROR
        self.partitions.pop(name, None)
        strays = [] if deleted_topic == ZERO_UUID else self._strays_of(name, deleted_topic)
        try:
            for directory in holding:
                await directory.delete(name)
            for directory, stray in strays:
                _log.info("the stray %s is deleted with its topic", stray.path)
                await directory.delete_stray(stray)
        except TidelogError as failure:
            _log.warning("cannot delete %s: %s", name, failure)
            return failure.code
        return ErrorCode.NONE

    def _strays_of(self, name: TopicPartition, topic_id: bytes) -> list[tuple[LogDirectory, Stray]]:
        """The strays of this topic. If its id is unknown: those of this name, unless they are of several topics."""
        named = [
            (directory, stray)
            for directory in self._storage.directories
            if directory.offline is None
            for stray in directory.strays.values()
            if stray.partition == name
        ]
        if topic_id == UNREADABLE_ID:
            return named if len({stray.topic_id for _, stray in named}) == 1 else []
        return [(directory, stray) for directory, stray in named if stray.topic_id == topic_id]

    def resign(self) -> None:
        """The life of the broker in which all this was said is over: it leads nothing, nor will what is under way."""
        self._lives += 1
        for partition in self.partitions.values():
            partition.follow()

    def brokers_changed(self) -> None:
        """Others came or went."""
        alive = self._alive()
        for partition in self.partitions.values():
            partition.brokers_changed(alive)

    def follower_seen(self, follower: BrokerId) -> None:
        """It fetches, whatever it asked for."""
        self.followers_seen[follower] = self._clock.monotonic_ms()

    def lag(self, partition: Partition) -> int:
        """How far a copy here is behind what its leader last said is committed, or 0 if it leads."""
        return (
            0 if partition.leader is not None else max(partition.told_high_watermark - partition.log.log_end_offset, 0)
        )

    async def _set_strays_aside(self, wanted: Container[TopicPartition]) -> None:
        """What the controller does not name is not thereby deleted (edge case 35): a node may be unreadable to it."""
        strays = [
            name
            for directory in self._storage.directories
            if directory.offline is None
            for name in directory.logs
            if name not in wanted
        ]
        for name, result in zip(
            strays, await asyncio.gather(*map(self._set_aside, strays), return_exceptions=True), strict=True
        ):
            if isinstance(result, TidelogError):
                _log.error("%s cannot be set aside as a stray: %s", name, result)
            elif isinstance(result, BaseException):
                raise result
        self._tell_of_strays()

    def _tell_of_strays(self) -> None:
        made, self._strays_made = self._strays_made, []
        if made:
            _log.warning(
                "%s that the controller does not name %s now: %s. What they hold is kept and comes back when they are "
                "named again; to delete it, see `tidelog log strays`",
                counted(len(made), "replica"),
                "is a stray" if len(made) == 1 else "are strays",
                listed(made, lambda stray: f"{stray.partition} ({stray.size_bytes} bytes in {stray.path})"),
            )

    async def _set_aside(self, name: TopicPartition) -> None:
        partition = self.partitions.pop(name, None)
        if partition is not None:
            await self._stop_serving(partition)
        for directory in self._storage.directories:
            if name in directory.logs and directory.offline is None:
                self._strays_made.append(await directory.set_aside(name))

    async def check_isrs(self, pace: Pace) -> None:
        """Every half of replica.lag.time.max.ms (S3.1)."""
        async for some in pace.slices(list(self.partitions.values())):
            for partition in some:
                partition.check_isr()

    def went_offline(self, directory: LogDirectory) -> None:
        """Nobody waits for what a failed directory held."""
        for name in directory.logs:
            partition = self.partitions.get(name)
            if partition is not None:
                partition.went_offline()
