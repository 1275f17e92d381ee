"""For tests of groups: a coordinator with its log and its clock, and members that only send what they are told to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from tidelog.config.broker import BrokerConfig
from tidelog.errors import ErrorCode
from tidelog.groups import Answer, Answers, Client, Effect, GroupConfig, Groups, LargeCommit, Record, Write
from tidelog.wire import ZERO_UUID
from tidelog.wire.codec import decode, encode
from tidelog.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from tidelog.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tidelog.wire.messages.groups import (
    DeleteGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tidelog.wire.schema import Message
from tidelog.wire.stored import encode_versioned

GROUP = "orders-readers"
CLIENT = Client("reader", "/127.0.0.1")
START_MS = 1_700_000_000_000
SESSION_MS = 10_000
REBALANCE_MS = 60_000


def group_config(**changes: Any) -> GroupConfig:
    """The default of every setting, but for these changes."""
    return replace(GroupConfig.of(BrokerConfig.defaults()), **changes)


def subscription(*topics: str) -> bytes:
    return encode_versioned(ConsumerProtocolSubscription(topics=list(topics)), 1)


@dataclass
class Entry:
    """A write in the log of the coordinator."""

    write: Write
    outcome: int | None = None
    """None while it is not settled."""


@dataclass
class Coordinator:
    """Carries effects out. `hold` keeps writes from being settled until `settle` is called."""

    config: GroupConfig = field(default_factory=lambda: group_config())
    hold: bool = False
    now_ms: int = START_MS
    answers: dict[Any, Any] = field(default_factory=dict)
    log: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.groups = Groups(self.config)
        self.topic_ids: dict[str, bytes] = {}
        """Of topics that have one."""
        self.versions: dict[Any, int] = {}
        self.requests: dict[int, tuple[Message, int]] = {}
        """What was asked, by ticket, with its version."""
        self._tickets = count(1)
        self._ids = count(1)

    # Effects

    def delete_topics(self, *topics: str) -> None:
        """Every group has forgotten them then, or is about to."""
        self.groups.forgetting.topics_deleted(dict.fromkeys(topics, ZERO_UUID))
        looked_at = 1
        while looked_at:
            effects, looked_at = self.groups.forgetting.forget_deleted(1, self.now_ms)
            self.carry_out(effects)

    def expire_offsets(self, most: int = 1) -> None:
        """A check of all groups, some at a time."""
        self.groups.forgetting.begin_expiry()
        while self.groups.forgetting.has_expiry:
            effects, _ = self.groups.forgetting.expire_offsets(most, self.now_ms)
            self.carry_out(effects)

    def delete_offsets(self, request: OffsetDeleteRequest, ticket: Any) -> None:
        """When it is known what the members read."""
        reads = self.groups.subscriptions(request.group_id, [topic.name for topic in request.topics])
        while not reads.is_complete:
            reads.look(1)
        self.carry_out(self.groups.delete_offsets(request, reads, self.now_ms, ticket))

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in _each(effects):
            if isinstance(effect, Answer):
                assert effect.ticket not in self.answers, "answered twice"
                self.answers[effect.ticket] = effect.message
                self._check_encodes(effect)
            else:
                entry = Entry(effect)
                self.log.append(entry)
                if not self.hold:
                    self.settle(ErrorCode.NONE, entry)
        assert self.kept() == self.counted(), "what is kept is counted"
        assert self.groups.usage.member_bytes == self.member_bytes()

    def member_bytes(self) -> int:
        groups = self.groups._groups.values()
        return sum(member.size_bytes for group in groups for member in group.members.values())

    def counted(self) -> tuple[int, int, int, int]:
        usage = self.groups.usage
        return usage.groups, usage.pending_ids, usage.offsets, usage.metadata_bytes

    def kept(self) -> tuple[int, int, int, int]:
        """Groups, pending ids, offsets, bytes of metadata."""
        groups = self.groups._groups.values()
        values = [
            value for group in groups for partitions in group.commits.by_topic.values() for value in partitions.values()
        ]
        pending = sum(len(group.pending) for group in groups)
        return len(groups), pending, len(values), sum(len(value.metadata.encode()) for value in values)

    def _check_encodes(self, answer: Answer) -> None:
        """An answer can be sent in the version that was asked in."""
        version = self.versions.get(answer.ticket)
        if version is not None:
            encode(answer.message, version)

    def _ticket(self, request: Message, version: int, answers_in_part: bool = False) -> int:
        ticket = next(self._tickets)
        self.requests[ticket] = (request, version)
        if not answers_in_part:
            self.versions[ticket] = version
        return ticket

    def waiting_writes(self) -> list[Entry]:
        return [entry for entry in self.log if entry.outcome is None]

    def settle(self, error: int = ErrorCode.NONE, entry: Entry | None = None) -> None:
        """The oldest write that waits, or the one that is named."""
        entry = self.waiting_writes()[0] if entry is None else entry
        if error != ErrorCode.REQUEST_TIMED_OUT:
            entry.outcome = error
        self.carry_out(entry.write.done(error, self.now_ms))

    def committed(self) -> list[Record]:
        return [record for entry in self.log if entry.outcome == ErrorCode.NONE for record in entry.write.records]

    def fail_over(self) -> None:
        """Another broker leads: it has what was committed, and nothing else."""
        self.carry_out(self.groups.unload(self.now_ms))
        for entry in self.waiting_writes():
            self.settle(ErrorCode.NOT_LEADER_OR_FOLLOWER, entry)
        self.groups = Groups(self.config)
        self.groups.replay(self.committed())
        self.carry_out(self.groups.loaded(self.now_ms))

    def pass_ms(self, ms: int) -> None:
        """Time passes, and each timer is served when it is due."""
        end_ms = self.now_ms + ms
        while (due_ms := self.groups.deadline_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.carry_out(self.groups.expire(self.now_ms))
        self.now_ms = end_ms

    def state(self, group_id: str = GROUP) -> str:
        return self.groups.describe(group_id, 5).group_state

    # Requests; each gives the ticket

    def join(
        self,
        member_id: str = "",
        *,
        group_id: str = GROUP,
        instance_id: str | None = None,
        protocols: Mapping[str, bytes] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 9,
    ) -> int:
        protocols = {"range": subscription("orders")} if protocols is None else protocols
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms if version >= 1 else -1,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols.items()],
        )
        ticket = self._ticket(request, version)
        suffix = f"{next(self._ids):04}"
        self.carry_out(self.groups.join(_sent(request, version), version, CLIENT, suffix, self.now_ms, ticket))
        return ticket

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        group_id: str = GROUP,
        instance_id: str | None = None,
        protocol_type: str | None = "consumer",
        protocol: str | None = "range",
        version: int = 5,
    ) -> int:
        request = SyncGroupRequest(
            group_id=group_id,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocol_name=protocol,
            assignments=[
                SyncGroupRequestAssignment(member_id=to, assignment=share) for to, share in (assignments or {}).items()
            ],
        )
        ticket = self._ticket(request, version)
        self.carry_out(self.groups.sync(_sent(request, version), version, self.now_ms, ticket))
        return ticket

    def heartbeat(
        self, member_id: str, generation: int, *, instance_id: str | None = None, group_id: str = GROUP
    ) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=group_id, generation_id=generation, member_id=member_id, group_instance_id=instance_id
        )
        ticket = self._ticket(request, 4)
        self.carry_out(self.groups.heartbeat(_sent(request, 4), self.now_ms, ticket))
        return ErrorCode(self.answers[ticket].error_code)

    def leave(self, *members: str | tuple[str, str | None], group_id: str = GROUP, version: int = 5) -> int:
        identities = [
            MemberIdentity(member_id=member)
            if isinstance(member, str)
            else MemberIdentity(member_id=member[0], group_instance_id=member[1])
            for member in members
        ]
        request = LeaveGroupRequest(group_id=group_id, members=identities)
        if version < 3:
            request = LeaveGroupRequest(group_id=group_id, member_id=identities[0].member_id)
        ticket = self._ticket(request, version)
        self.carry_out(self.groups.leave(_sent(request, version), version, self.now_ms, ticket))
        return ticket

    def commit(
        self,
        offsets: Mapping[tuple[str, int], int],
        member_id: str = "",
        generation: int = -1,
        *,
        group_id: str = GROUP,
        instance_id: str | None = None,
        metadata: str | None = "",
        retention_ms: int = -1,
        version: int = 9,
        large: bool = False,
    ) -> int:
        """A large one is read partition by partition."""
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for (topic, partition), offset in offsets.items():
            topic_id = self.topic_ids.get(topic, ZERO_UUID)
            topics.setdefault(topic, OffsetCommitRequestTopic(name=topic, topic_id=topic_id)).partitions.append(
                OffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_metadata=metadata
                )
            )
        request = OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            retention_time_ms=retention_ms,
            topics=list(topics.values()),
        )
        ticket = self._ticket(request, version)
        if large:
            commits = self.groups.commits_of(group_id)
            whole = LargeCommit(request, self.config, self.groups.usage, commits, self.now_ms)
            for name, topic in topics.items():
                for partition in topic.partitions:
                    one = OffsetCommitRequestTopic(name=name, topic_id=topic.topic_id, partitions=[partition])
                    whole.read([one])
            self.carry_out(self.groups.commit_large(whole, version, self.now_ms, ticket))
        else:
            sent = _sent(request, version)
            for topic in sent.topics:
                topic.topic_id = topics[topic.name].topic_id
            self.carry_out(self.groups.commit_offsets(sent, version, self.now_ms, ticket))
        return ticket

    def snapshot(self, *topics: str, group_id: str = GROUP, require_stable: bool = False) -> int:
        ticket = next(self._tickets)
        effects = self.groups.snapshot_offsets(
            group_id, topics or None, self.now_ms, ticket, require_stable=require_stable
        )
        self.carry_out(effects)
        return ticket

    def fetch(
        self,
        partitions: Mapping[str, Sequence[int]] | None = None,
        *,
        group_id: str = GROUP,
        require_stable: bool = False,
        version: int = 9,
    ) -> int:
        asked = OffsetFetchRequestGroup(
            group_id=group_id,
            topics=None
            if partitions is None
            else [
                OffsetFetchRequestTopics(name=topic, partition_indexes=list(indexes))
                for topic, indexes in partitions.items()
            ],
        )
        request = OffsetFetchRequest(groups=[asked], require_stable=require_stable)
        ticket = self._ticket(request, version, answers_in_part=True)
        self.carry_out(self.groups.fetch_offsets(asked, version, self.now_ms, ticket, require_stable=require_stable))
        return ticket

    def delete_group(self, group_id: str = GROUP) -> int:
        ticket = self._ticket(DeleteGroupsRequest(groups_names=[group_id]), 2, answers_in_part=True)
        self.carry_out(self.groups.delete_group(group_id, self.now_ms, ticket))
        return ticket

    # What came of it

    def error(self, ticket: int) -> ErrorCode:
        """Of an answer with one error: its own, or that of its first partition or member."""
        message = self.answers[ticket]
        if hasattr(message, "error_code") and message.error_code:
            return ErrorCode(message.error_code)
        for part in getattr(message, "topics", None) or getattr(message, "members", None) or ():
            parts = getattr(part, "partitions", [part])
            return ErrorCode(getattr(parts[0], "error_code", 0))
        return ErrorCode.NONE

    def offsets(self, group_id: str = GROUP) -> dict[tuple[str, int], int]:
        """All that is committed."""
        group = self.answers[self.fetch(group_id=group_id)]
        return {
            (topic.name, partition.partition_index): partition.committed_offset
            for topic in group.topics
            for partition in topic.partitions
        }

    # Whole rebalances

    def new_member(self, **options: Any) -> tuple[str, int]:
        """The id that it is given, and the ticket of the join that waits with it."""
        first = self.join(**options)
        member_id = self.answers[first].member_id
        assert self.error(first) == ErrorCode.MEMBER_ID_REQUIRED
        return member_id, self.join(member_id, **options)

    def joined(self, ticket: int) -> JoinGroupResponse:
        answer = self.answers[ticket]
        assert isinstance(answer, JoinGroupResponse)
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
        return answer

    def stable(self, members: int = 1, **options: Any) -> list[str]:
        """A Stable group of so many dynamic members, the leader first; each has its own id as its assignment."""
        joined = [self.new_member(**options) for _ in range(members)]
        self.pass_ms(min(members, 2) * self.config.initial_rebalance_delay_ms)
        ids = [member_id for member_id, _ in joined]
        generation = self.joined(joined[0][1]).generation_id
        for member_id in reversed(ids):
            shares = {each: each.encode() for each in ids} if member_id == ids[0] else {}
            self.sync(member_id, generation, shares)
        assert self.state() == "Stable"
        return ids


def _each(effects: list[Effect]) -> Iterator[Answer | Write]:
    """Many answers one by one."""
    for effect in effects:
        if isinstance(effect, Answers):
            while effect.waiting:
                yield effect.take()
        else:
            yield effect


def _sent(message: Any, version: int) -> Any:
    """As it comes out of the wire: what the version lacks is lost."""
    assert isinstance(message, Message)
    return decode(type(message), encode(message, version), version)
