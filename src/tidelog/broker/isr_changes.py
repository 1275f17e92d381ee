"""Changes of ISRs: leaders ask for them, the controller decides (AlterPartition), many partitions at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Protocol

from tidelog.broker.partition import Partition
from tidelog.broker.said import Said
from tidelog.controller.asked_before import mark_asked_before
from tidelog.controller.elr_tags import elr_of
from tidelog.errors import ErrorCode, TidelogError, error_code
from tidelog.metrics import Metrics
from tidelog.replication.leader import Leader
from tidelog.types import NO_EPOCH, BrokerId, Epoch, TopicPartition
from tidelog.wire.messages.controller import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    BrokerState,
)
from tidelog.wording import MOST_LISTED, counted, listed

_log = logging.getLogger(__name__)

_VERSION, _WITHOUT_EPOCHS = 3, 2
"""Versions of AlterPartition, with and without the members' broker epochs."""
_RETRY_S = 0.05
_CONFIRM_S = 1.0
"""How long a client's request waits for the controller's word on who leads."""
MOST_AT_ONCE = 4_000
"""Partitions of one request. With an ISR of three that is 24,000 elements; a controller takes ten times as many."""
_WORTH_ANOTHER_TRY = (ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH, ErrorCode.REQUEST_TIMED_OUT)
_OVERTAKEN = (ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH)


class Sender(Protocol):
    """Brings a request to whoever is controller now."""

    def __call__(self, request: AlterPartitionRequest, version: int) -> Awaitable[AlterPartitionResponse]: ...


class _Proposal:
    """What one leader asks for; void when its term is over."""

    __slots__ = ("epochs", "isr", "leader", "partition", "tries")

    def __init__(self, partition: Partition, leader: Leader, isr: tuple[BrokerId, ...], epochs: list[Epoch]) -> None:
        self.partition = partition
        self.leader = leader
        self.isr = isr
        self.epochs = epochs
        """Of the lives of the members that the leader has seen in sync. A later one may have lost what it had, and
        must not join because this is asked for again (edge case 8)."""
        self.tries = 0

    @property
    def version(self) -> int:
        """The version of AlterPartition that asks for it.

        A follower that joins and cannot tell its broker epoch (Fetch below v15) is asked for in one that has none.
        """
        joining = [epoch for member, epoch in zip(self.isr, self.epochs, strict=True) if member not in self.leader.isr]
        return _VERSION if NO_EPOCH not in joining else _WITHOUT_EPOCHS

    @property
    def is_void(self) -> bool:
        return self.partition.leader is not self.leader or self.leader.pending_isr != self.isr


class IsrChanges:
    """One request under way at a time; what is asked for meanwhile goes together in the next, as far as it fits."""

    def __init__(
        self,
        broker_id: BrokerId,
        broker_epoch: Callable[[], Epoch],
        send: Sender,
        metrics: Metrics,
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._shrinks = metrics.counter(
            "kafka_server_replicamanager_isrshrinks_total", "ISRs of partitions led here that became smaller."
        )
        self._expands = metrics.counter(
            "kafka_server_replicamanager_isrexpands_total", "ISRs of partitions led here that became larger."
        )
        self._failed = metrics.counter(
            "kafka_server_replicamanager_failedisrupdates_total", "ISR changes that the controller refused."
        )
        self._send = send
        self._proposals: dict[TopicPartition, _Proposal] = {}
        self._task: asyncio.Task[None] | None = None
        self._said, self._refusals_said = Said(), Said()

    def propose(self, partition: Partition, isr: tuple[BrokerId, ...]) -> None:
        """From here on both sets count, until the controller has answered (S3.4)."""
        leader = partition.leader
        assert leader is not None
        leader.isr_asked_for(isr)
        self._proposals[partition.name] = self._proposal(partition, leader, isr)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._proposals.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            asked = {name: one for name, one in self._proposals.items() if not one.is_void}
            self._proposals = dict(asked)
            if not asked:
                return
            version = min(asked.values(), key=lambda one: one.tries).version
            asked = dict(islice(((name, one) for name, one in asked.items() if one.version == version), MOST_AT_ONCE))
            for name, proposal in asked.items():
                proposal.tries += 1
                self._proposals[name] = self._proposals.pop(name)  # those that were not asked for yet come first
            try:
                response = await self._send(self._request(asked, version), version)
                if response.error_code == ErrorCode.NONE:
                    self._said.is_over()
                    self._take(asked, response)
                    if not any(self._proposals.get(name) is one for name, one in asked.items()):
                        continue
                    # The controller knows less than this leader, or says nothing of some: it is asked again soon.
                elif self._said.is_news(why := error_code(response.error_code).name):
                    _log.info("the controller does not take ISR changes: %s", why)
            except (TidelogError, OSError) as failure:
                if self._said.is_news(str(failure)):
                    _log.info("the controller cannot be asked for ISR changes yet: %s", failure)
            except Exception:  # whatever it is: without this task no ISR of this broker's partitions changes any more
                _log.exception("asking for ISR changes failed unexpectedly; it is tried again")
            await asyncio.sleep(_RETRY_S)

    async def confirm(self, partition: Partition, leader: Leader) -> bool:
        """Whether the controller, asked now, still takes this broker for the leader of this term.

        It is asked for the ISR as it is, which changes nothing: a state that this leader does not know is refused.
        """
        asked = {partition.name: self._proposal(partition, leader, leader.isr)}
        try:
            async with asyncio.timeout(_CONFIRM_S):
                response = await self._send(self._request(asked, _VERSION), _VERSION)
        except (TidelogError, OSError) as failure:
            _log.info("the controller does not say whether %s is still led here: %s", partition.name, failure)
            return False
        answers = [answer for topic in response.topics for answer in topic.partitions]
        return any(
            answer.error_code == ErrorCode.NONE
            and (answer.leader_id, answer.leader_epoch) == (self._broker_id, leader.epoch)
            for answer in answers
        )

    def _proposal(self, partition: Partition, leader: Leader, isr: tuple[BrokerId, ...]) -> _Proposal:
        return _Proposal(partition, leader, isr, [self._epoch_of(member, leader) for member in isr])

    def _request(self, asked: Mapping[TopicPartition, _Proposal], version: int) -> AlterPartitionRequest:
        topics: dict[str, AlterPartitionRequestTopicData] = {}
        for name, one in asked.items():
            topic = topics.setdefault(
                name.topic, AlterPartitionRequestTopicData(topic_name=name.topic, topic_id=one.partition.topic_id)
            )
            data = AlterPartitionRequestPartitionData(
                partition_index=name.partition,
                leader_epoch=one.leader.epoch,
                partition_epoch=one.partition.partition_epoch,
            )
            if version == _WITHOUT_EPOCHS:
                data.new_isr = list(one.isr)
            else:
                data.new_isr_with_epochs = [
                    BrokerState(broker_id=member, broker_epoch=epoch)
                    for member, epoch in zip(one.isr, one.epochs, strict=True)
                ]
            if one.tries > 1:
                mark_asked_before(data)
            topic.partitions.append(data)
        return AlterPartitionRequest(
            broker_id=self._broker_id, broker_epoch=self._broker_epoch(), topics=list(topics.values())
        )

    def _epoch_of(self, member: BrokerId, leader: Leader) -> Epoch:
        """Of which life of the member the leader speaks; it has not heard of one that has yet to fetch."""
        remote = leader.remotes.get(member)
        return self._broker_epoch() if remote is None else remote.broker_epoch

    def _take(self, asked: Mapping[TopicPartition, _Proposal], response: AlterPartitionResponse) -> None:
        story = _Story() if _log.isEnabledFor(logging.INFO) else None
        by_id = {one.partition.topic_id: one.partition.name.topic for one in asked.values()}
        for topic in response.topics:
            name = topic.topic_name or by_id.get(topic.topic_id, "")
            for answer in topic.partitions:
                one = asked.get(TopicPartition(name, answer.partition_index))
                if one is not None:
                    self._settle(one, answer, story)
        if story is not None:
            story.tell(self._refusals_said)

    def _settle(self, one: _Proposal, answer: AlterPartitionResponsePartitionData, story: _Story | None) -> None:
        name = one.partition.name
        if self._proposals.get(name) is one:
            del self._proposals[name]
        if one.is_void:
            return
        code = error_code(answer.error_code)
        if code is ErrorCode.NONE:
            if answer.partition_epoch > one.partition.partition_epoch:
                (self._expands if len(answer.isr) > len(one.leader.isr) else self._shrinks).add()
                if story is not None:
                    story.changed(one, answer.isr)
                one.partition.partition_epoch = answer.partition_epoch
                one.partition.isr_changed(answer.isr, elr=elr_of(answer))
            else:
                one.leader.isr_refused()
        elif code in _WORTH_ANOTHER_TRY:
            self._proposals[name] = one
        elif code in _OVERTAKEN:
            # The node moved on without us: what it holds now comes with a LeaderAndIsr, and both sets count until then.
            # What was asked for may have been granted before that, by an answer that was lost.
            if story is not None:
                story.overtaken.append(name)
        else:
            self._failed.add()
            if story is not None:
                story.refused.append((name, f"{list(one.isr)}: {code.name}"))
            one.leader.isr_refused()


class _Story:
    """What one answer of the controller changed, for the log: the first few of each kind, and how many there are."""

    def __init__(self) -> None:
        self.shrunk: list[str] = []
        self.grown: list[str] = []
        self.overtaken: list[TopicPartition] = []
        self.refused: list[tuple[TopicPartition, str]] = []
        self._counts = [0, 0]

    def changed(self, proposal: _Proposal, isr: Sequence[BrokerId]) -> None:
        """Called before the leader takes the new ISR over."""
        leader = proposal.leader
        left = [member for member in leader.isr if member not in isr]
        came = [member for member in isr if member not in leader.isr]
        for place, members, texts in ((0, left, self.shrunk), (1, came, self.grown)):
            if members:
                self._counts[place] += 1
                if len(texts) < MOST_LISTED or _log.isEnabledFor(logging.DEBUG):
                    ids = f"{_ids(leader.isr)} -> {_ids(isr)}"
                    how = ", ".join(_standing(proposal, member) for member in members)
                    texts.append(f"{proposal.partition.name} ISR {ids} (leader epoch {leader.epoch}; {how})")

    def tell(self, said: Said) -> None:
        """What is refused or overtaken may be so again and again."""
        shrunk, grown = self._counts
        if shrunk:
            _log.info("%s: %s", _summary("shrank", shrunk), _first(self.shrunk, shrunk))
        if grown:
            _log.info("%s: %s", _summary("expanded", grown), _first(self.grown, grown))
        if self.overtaken and said.is_news("overtaken"):
            count = counted(len(self.overtaken), "partition")
            _log.info("the ISR of %s was changed by the controller first: %s", count, listed(self.overtaken))
        if self.refused and said.is_news("refused"):
            texts = [f"{name} ISR {why}" for name, why in self.refused]
            _log.info("the controller refuses the ISR of %s: %s", counted(len(texts), "partition"), listed(texts))
        if _log.isEnabledFor(logging.DEBUG):
            for text in (*self.shrunk, *self.grown):
                _log.debug("changed: %s", text)


def _summary(verb: str, count: int) -> str:
    return f"the ISR of {counted(count, 'partition')} {verb}"


def _first(texts: Sequence[str], count: int) -> str:
    first = ", ".join(texts[:MOST_LISTED])
    return first if count <= MOST_LISTED else f"{first} and {count - MOST_LISTED:,} more"


def _standing(proposal: _Proposal, member: BrokerId) -> str:
    """How far a follower is behind its leader, and for how long."""
    leader = proposal.leader
    remote = leader.remotes.get(member)
    if remote is None:
        return f"broker {member} is no replica any more"
    if remote.log_end_offset < 0:
        return f"broker {member} has not fetched in this leader epoch"
    behind = leader.log_end_offset - remote.log_end_offset
    if behind <= 0:
        return f"broker {member} has caught up at offset {remote.log_end_offset}"
    since_s = (proposal.partition.log.clock.monotonic_ms() - remote.caught_up_ms) / 1000
    for_long = f" and has not caught up for {since_s:.1f} s" if remote.caught_up_ms > 0 else ""
    return f"broker {member} is {counted(behind, 'record')} behind at offset {remote.log_end_offset}{for_long}"


def _ids(ids: Sequence[BrokerId]) -> str:
    return ",".join(map(str, ids))
