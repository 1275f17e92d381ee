"""One replica that lives on this broker: its log, its role, and who waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Protocol

from tidelog.broker.standing import Standing
from tidelog.broker.waiting import Answer, AnswerTime, CommitQueue, Waiter
from tidelog.broker.watchers import Watchers
from tidelog.broker.write_rules import WriteRules
from tidelog.errors import ErrorCode, TidelogError
from tidelog.log.log import Appended, Log
from tidelog.log.producers import AppendOrigin
from tidelog.records.header import BatchHeader
from tidelog.replication.follower import high_watermark as follower_high_watermark
from tidelog.replication.leader import FollowerFetch, Leader
from tidelog.types import NO_EPOCH, BrokerId, Buffer, Epoch, Offset, ProducerId, TopicPartition

NO_LEADER = -1


class RequestError(TidelogError):
    """What a client is told of one partition or topic; `code` says it to programs, the text to people."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code


class IsrProposals(Protocol):
    """Where a leader asks for another ISR, and whether it still leads."""

    def propose(self, partition: Partition, isr: tuple[BrokerId, ...]) -> None: ...

    async def confirm(self, partition: Partition, leader: Leader) -> bool: ...


class Partition:
    """Belongs to the broker's loop. `leader` is there while this replica leads."""

    def __init__(
        self,
        name: TopicPartition,
        topic_id: bytes,
        log: Log,
        rules: WriteRules,
        proposals: IsrProposals,
        followers_seen: Mapping[BrokerId, int],
        role_changed: Callable[[Partition], None],
        standing: Standing,
        answer_time: AnswerTime,
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.log = log
        self.leader: Leader | None = None
        self.leader_id: BrokerId = NO_LEADER
        self.leader_epoch: Epoch = NO_EPOCH
        self.partition_epoch = -1
        self.controller_epoch: Epoch = NO_EPOCH
        self.replicas: tuple[BrokerId, ...] = ()
        self.isr: tuple[BrokerId, ...] = ()
        self.is_reassigned = False
        """Replicas come or go, as the controller last said; only shown."""
        self.told_high_watermark: Offset = 0
        """As a follower: what the leader last said."""
        self.watchers = Watchers(answer_time)
        """Fetches that want to know that there may be more to read, or that there is another leader."""
        self._rules = rules
        self._proposals = proposals
        self._followers_seen = followers_seen
        """When each follower last fetched anything from this broker."""
        self._role_changed = role_changed
        self._standing = standing
        self._answer_time = answer_time
        self._is_answering_put_off = False
        self._awaiting_low_watermark: dict[Answer, Offset] = {}
        self.awaiting_commit = CommitQueue()
        """Produces with acks=all by the offset that HW has to reach. HW may have passed some of them that are to be
        answered in the next turns."""

    @property
    def rules(self) -> WriteRules:
        return self._rules

    @rules.setter
    def rules(self, rules: WriteRules) -> None:
        self._rules = rules
        if self.leader is not None:
            self.leader.need_replicas(rules.min_insync_replicas)
            self._try_advance(self.leader)

    def _now_ms(self) -> int:
        return self.log.clock.monotonic_ms()

    # The role

    def lead(self, leader: Leader) -> None:
        """This replica leads, from now on or still."""
        self.leader = leader
        leader.may_commit = partial(self._standing.may_commit, self)
        self.log.high_watermark = leader.high_watermark
        leader.advance(self._now_ms())
        self._tide_rose(leader)
        self._wake()
        self._role_changed(self)

    def pause(self) -> None:
        """Between two terms: once the new one has its start in the log, nothing may be written under the old one."""
        self.leader = None

    def follow(self) -> None:
        """Another one leads: whoever waits here for HW has to ask there (S7.3)."""
        self.leader = None
        self.fail_waiting(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._wake()
        self._role_changed(self)

    def leader_told(self, leader_high_watermark: Offset) -> None:
        """As a follower: what is committed, as far as it is here (S2.8)."""
        self.told_high_watermark = leader_high_watermark
        high_watermark = follower_high_watermark(leader_high_watermark, self.log.log_end_offset)
        if high_watermark > self.log.high_watermark:
            self.log.high_watermark = high_watermark
            self._wake()

    def went_offline(self) -> None:
        """Its log directory failed: this replica leads no more, proposes no ISR, and answers all who wait for it."""
        self.leader = None
        self.fail_waiting(ErrorCode.KAFKA_STORAGE_ERROR)
        self._wake()
        self._role_changed(self)

    def fail_waiting(self, code: ErrorCode) -> None:
        waiting, self.awaiting_commit = self.awaiting_commit, CommitQueue()
        deletions, self._awaiting_low_watermark = self._awaiting_low_watermark, {}
        self._fail(waiting, code)
        for answer in deletions:
            answer(code)

    def _fail(self, waiting: CommitQueue, code: ErrorCode) -> None:
        while waiting.first_offset() is not None:
            if self._answer_time.is_over():
                self._answer_time.put_off(partial(self._fail, waiting, code))
                return
            waiting.pop()(code)

    def leader_for(self, current_leader_epoch: Epoch) -> Leader:
        """The leader's view, if this is it and the client knows its term (S4.3)."""
        if 0 <= current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise RequestError(ErrorCode.FENCED_LEADER_EPOCH)
            raise RequestError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if self.leader is None:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.leader

    # How sure this leader is

    @property
    def is_current(self) -> bool:
        """The broker's session is surely alive: what is said now is said by a member of the cluster."""
        return self._standing.is_current()

    def check_term(self) -> None:
        """RequestError unless its session is current and its HW has reached the start of its epoch (S1.3).

        Until then a leader sends no client to its reset policy: the client is to look for the leader and to try again
        (edge case 43).
        """
        leader = self.leader
        if leader is None or self.log.high_watermark < leader.epoch_start_offset or not self.is_current:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    @property
    def is_sole_candidate(self) -> bool:
        """No other broker can have been elected while this one's session is current."""
        return self.leader is not None and len(self.leader.maximal_isr) == 1

    async def confirm_term(self) -> None:
        """RequestError unless no other broker leads by now, be it that this one has not heard of it yet.

        The controller is asked after the client's request came: what the client knows of a newer leader, the
        controller knows too.
        """
        self.check_term()
        leader = self.leader
        assert leader is not None
        if self.is_sole_candidate:
            return
        if not await self._proposals.confirm(self, leader) or self.leader is not leader:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # Append

    def append(self, batch: Buffer, header: BatchHeader, origin: AppendOrigin = AppendOrigin.CLIENT) -> Appended:
        """Write one checked batch as the leader; `advance` moves HW when it may be seen. See `write_path`."""
        leader = self.leader
        if leader is None or not self.is_current:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.log.append_as_leader(batch, leader.epoch, header=header, origin=origin)

    def heard(self, producer_id: ProducerId) -> None:
        """A batch of this producer came and was refused before the log saw it: the producer is at work."""
        self.log.producers.heard(producer_id, self._now_ms())

    def advance(self, leader: Leader, log_end_offset: Offset) -> None:
        """What was written in this term up to here counts from now on: HW moves if it can."""
        if leader is self.leader and leader.log_end_offset < log_end_offset:
            now_ms = self._now_ms() if leader.remotes else 0
            if leader.appended(log_end_offset, now_ms, self._followers_seen):
                self._tide_rose(leader)

    async def flush_and_advance(self, leader: Leader) -> None:
        """flush.messages or flush.ms: what counts is on the device (S3.3)."""
        log = self.log
        await log.flush_if_due()
        # Where no flush is due any more, another one has left so little behind that it may be seen as it is.
        self.advance(leader, log.recovery_point if log.flush_due else log.log_end_offset)
        self.appended_all()

    @property
    def leads(self) -> bool:
        return self.leader is not None and self.log.failed is None

    def appended_all(self) -> None:
        """After the batches of one request: tell those who wait for something to read."""
        if self.watchers.all:
            self.watchers.tell()

    # Replication

    def isr_changed(
        self, isr: Sequence[BrokerId], replicas: Sequence[BrokerId] | None = None, *, elr: Sequence[BrokerId] = ()
    ) -> None:
        """The controller says who is in sync, and who else may be elected."""
        self.isr = tuple(isr)
        leader = self.leader
        if leader is None:
            return
        if leader.isr_changed(isr, replicas, self._now_ms(), elr):
            self._tide_rose(leader)
            self._wake()
        self._try_grow(leader)
        if self._awaiting_low_watermark:
            self._check_low_watermark(leader)

    def follower_fetched(self, fetch: FollowerFetch) -> None:
        """A valid fetch of this term: it tells what the follower has, may move HW, may bring it into the ISR (S2.7)."""
        leader = self.leader
        if leader is None:
            return
        if leader.follower_fetched(fetch, self._now_ms()):
            self._tide_rose(leader)
            self._wake()
        self._try_grow(leader, fetch.follower)
        if self._awaiting_low_watermark:
            self._check_low_watermark(leader)

    def check_isr(self) -> None:
        """Now and then: who has not caught up for too long leaves the ISR (S3.1), and no longer holds HW back."""
        leader = self.leader
        if leader is None:
            return
        shrunk = leader.shrunk_isr(self._now_ms())
        if shrunk is not None:
            self._proposals.propose(self, shrunk)
        else:
            self._try_grow(leader)
        self._try_advance(leader)

    def brokers_changed(self, alive: Container[BrokerId]) -> None:
        """One that came may join the ISR now; for one that went nobody need wait."""
        leader = self.leader
        if leader is None:
            return
        if leader.brokers_changed(alive, self._now_ms()):
            self._tide_rose(leader)
            self._wake()
        self._try_grow(leader)
        if self._awaiting_low_watermark:
            self._check_low_watermark(leader)

    def _try_grow(self, leader: Leader, *followers: BrokerId) -> None:
        """Ask for a larger ISR if one of these may join, or one of all.

        Not only on a fetch: one that came while another change was under way, or before its follower was known to
        be alive, may have been the last to name this partition for a long time.
        """
        since_ms = self._now_ms() - leader.max_lag_ms
        for follower in followers or leader.remotes:
            grown = leader.grown_isr(follower)
            is_here = followers or self._followers_seen.get(follower, since_ms) > since_ms
            if grown is not None and is_here:
                self._proposals.propose(self, grown)
                return

    def try_advance(self) -> None:
        """The session is current again: HW moves if it was held back."""
        if self.leader is not None:
            self._try_advance(self.leader)

    def _try_advance(self, leader: Leader) -> None:
        if leader.advance(self._now_ms()):
            self._tide_rose(leader)
            self._wake()

    # Log starts

    def log_start_moved(self) -> None:
        self._wake()

    @property
    def low_watermark(self) -> Offset:
        """The smallest log start that is on the device, over the living replicas (S10.2)."""
        if self.leader is None:
            return self.log.durable_log_start
        return self.leader.low_watermark(self.log.durable_log_start)

    def when_low_watermark(self, offset: Offset, answer: Answer) -> None:
        """Called once, when every living replica has dropped what is before `offset`, or when that cannot be told.

        What is dropped stays dropped after a crash: this replica writes its log start down, the others do so before
        they tell theirs.
        """
        self._awaiting_low_watermark[answer] = offset
        if self.log.durable_log_start < offset:
            asyncio.ensure_future(self.log.persist_checkpoints()).add_done_callback(self._log_start_written)
        if self.leader is not None:
            self._check_low_watermark(self.leader)

    def _log_start_written(self, writing: asyncio.Future[None]) -> None:
        """If it fails, the log directory is offline, and `went_offline` answers the deletions that wait."""
        if not writing.cancelled() and writing.exception() is None and self.leader is not None:
            self._check_low_watermark(self.leader)

    def _check_low_watermark(self, leader: Leader) -> None:
        reached = self.low_watermark
        done = [(answer, offset) for answer, offset in self._awaiting_low_watermark.items() if offset <= reached]
        code = self.written_result(leader)
        for answer, offset in done:
            del self._awaiting_low_watermark[answer]
            if code is ErrorCode.NONE:
                leader.deletion_acknowledged(offset)
            answer(code)

    def forget_deletion(self, answer: Answer) -> None:
        """Its time is over."""
        self._awaiting_low_watermark.pop(answer, None)

    # Commits

    def _tide_rose(self, leader: Leader) -> None:
        self.log.high_watermark = leader.high_watermark
        if self.awaiting_commit.waiters:
            self._answer_committed()

    def _answer_committed(self) -> None:
        """In the order of their offsets, and each with what is true when it is answered: the session may be over in a
        later turn. Between two terms none is answered; `lead` goes on with it."""
        waiting, high_watermark = self.awaiting_commit, self.log.high_watermark
        while (first := waiting.first_offset()) is not None and first <= high_watermark and self.leader is not None:
            if self._answer_time.is_over():
                self._put_answers_off()
                return
            waiting.pop()(self.commit_result(self.leader))

    def _put_answers_off(self) -> None:
        if not self._is_answering_put_off:
            self._is_answering_put_off = True
            self._answer_time.put_off(self._answer_put_off)

    def _answer_put_off(self) -> None:
        self._is_answering_put_off = False
        self._answer_committed()

    def written_result(self, leader: Leader) -> ErrorCode:
        """What acks=1 is told of records that were written in this leader's term, or DeleteRecords of a log start.

        After the term, or while the session may be over, another broker may lead: they may be cut off.
        """
        return ErrorCode.NONE if leader is self.leader and self.is_current else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def commit_result(self, leader: Leader) -> ErrorCode:
        """What acks=all is told of records that HW has passed (S3.2)."""
        if leader.has_enough_replicas():
            return self.written_result(leader)
        return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    def is_committed(self, offset: Offset) -> bool:
        return self.log.high_watermark >= offset

    def when_committed(self, offset: Offset, answer: Answer) -> Waiter:
        """Called once, when HW reaches `offset` or when that cannot be any more.

        What stands there was written in the present term, or before it: what a former term wrote may be cut off.
        """
        return self.awaiting_commit.add(offset, answer)

    def _wake(self) -> None:
        if self.watchers.all:
            self.watchers.tell()
