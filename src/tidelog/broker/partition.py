"""One replica that lives on this broker: its log, its role, and who waits for it."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Protocol

from tidelog.broker.write_rules import WriteRules
from tidelog.errors import ErrorCode, TidelogError
from tidelog.log.log import Appended, Log
from tidelog.records.header import BatchHeader
from tidelog.replication.leader import Leader
from tidelog.types import NO_EPOCH, BrokerId, Buffer, Epoch, Offset, TopicPartition

NO_LEADER = -1


class RequestError(TidelogError):
    """What a client is told of one partition or topic; `code` says it to programs, the text to people."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code


class Watcher(Protocol):
    """Somebody who wants to know that there may be more to read, or that there is another leader."""

    def changed(self) -> None: ...


class Partition:
    """Belongs to the broker's loop. `leader` is there while this replica leads."""

    def __init__(self, name: TopicPartition, topic_id: bytes, log: Log, rules: WriteRules) -> None:
        self.name = name
        self.topic_id = topic_id
        self.log = log
        self.rules = rules
        self.leader: Leader | None = None
        self.leader_id: BrokerId = NO_LEADER
        self.leader_epoch: Epoch = NO_EPOCH
        self.partition_epoch = -1
        self.controller_epoch: Epoch = NO_EPOCH
        self.replicas: tuple[BrokerId, ...] = ()
        self.isr: tuple[BrokerId, ...] = ()
        self.watchers: dict[Watcher, None] = {}
        self._awaiting_commit: deque[tuple[Offset, Callable[[ErrorCode], None]]] = deque()
        """Produces with acks=all by the offset that HW has to reach, lowest first."""

    # The role

    def lead(self, leader: Leader) -> None:
        """This replica leads, from now on or still."""
        self.leader = leader
        self.log.high_watermark = leader.high_watermark
        if leader.appended(self.log.log_end_offset):
            self._tide_rose(leader)
        self._wake()

    def pause(self) -> None:
        """Between two terms: once the new one has its start in the log, nothing may be written under the old one."""
        self.leader = None

    def follow(self) -> None:
        """Another one leads: whoever waits here for HW has to ask there (S7.3)."""
        self.leader = None
        self.fail_waiting(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._wake()

    def went_offline(self) -> None:
        """Its log directory failed: nobody need wait for anything here."""
        self.fail_waiting(ErrorCode.KAFKA_STORAGE_ERROR)
        self._wake()

    def fail_waiting(self, code: ErrorCode) -> None:
        waiting, self._awaiting_commit = self._awaiting_commit, deque()
        for _, answer in waiting:
            answer(code)

    def leader_for(self, current_leader_epoch: Epoch) -> Leader:
        """The leader's view, if this is it and the client knows its term (S4.3)."""
        if 0 <= current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise RequestError(ErrorCode.FENCED_LEADER_EPOCH)
            raise RequestError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if self.leader is None:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.leader

    # Append

    def append(self, batch: Buffer, header: BatchHeader) -> Appended:
        """Write one checked batch as the leader; `advance` moves HW when it may be seen."""
        leader = self.leader
        if leader is None:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.log.append_as_leader(batch, leader.epoch, header=header)

    def advance(self, leader: Leader, log_end_offset: Offset) -> None:
        """What was written in this term up to here counts from now on: HW moves if it can."""
        if leader is self.leader and leader.log_end_offset < log_end_offset and leader.appended(log_end_offset):
            self._tide_rose(leader)

    def appended_all(self) -> None:
        """After the batches of one request: tell those who wait for something to read."""
        self._wake()

    def isr_changed(self, isr: Sequence[BrokerId]) -> None:
        leader = self.leader
        if leader is not None and leader.isr_changed(isr):
            self._tide_rose(leader)
            self._wake()

    def log_start_moved(self) -> None:
        self._wake()

    def _tide_rose(self, leader: Leader) -> None:
        self.log.high_watermark = leader.high_watermark
        waiting = self._awaiting_commit
        while waiting and waiting[0][0] <= leader.high_watermark:
            waiting.popleft()[1](self.commit_result(leader))

    def commit_result(self, leader: Leader) -> ErrorCode:
        """What acks=all is told of records that HW has passed (S3.2)."""
        if leader.has_enough_replicas(self.rules.min_insync_replicas):
            return ErrorCode.NONE
        return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    def is_committed(self, offset: Offset) -> bool:
        return self.log.high_watermark >= offset

    def when_committed(self, offset: Offset, answer: Callable[[ErrorCode], None]) -> None:
        """Called once, when HW reaches `offset` or when that cannot be any more."""
        waiting = self._awaiting_commit
        if waiting and offset < waiting[-1][0]:
            insort(waiting, (offset, answer), key=itemgetter(0))  # a retry of what was written before others
        else:
            waiting.append((offset, answer))

    def forget_waiting(self, answer: Callable[[ErrorCode], None]) -> None:
        """Its time is over."""
        self._awaiting_commit = deque(entry for entry in self._awaiting_commit if entry[1] != answer)

    def _wake(self) -> None:
        if self.watchers:
            for watcher in list(self.watchers):
                watcher.changed()
