"""One member of a group."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.groups.effects import Ticket
from tidelog.groups.timers import Timer
from tidelog.wire.messages.group_records import MemberMetadata
from tidelog.wire.messages.groups import DescribedGroupMember, JoinGroupRequest, JoinGroupResponseMember

NEW_MEMBER_BYTES = 1_000
"""About what a member takes beside its texts, protocols and assignment: measured."""
_PROTOCOL_BYTES = 160
"""About what a protocol takes beside its name and metadata."""


class Client(NamedTuple):
    """Whom a request came from."""

    id: str
    host: str
    """As Kafka's tools show it: `/127.0.0.1`."""


class Terms(NamedTuple):
    """What a member asks for when it joins."""

    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: dict[str, bytes]
    """Its metadata for each protocol that it can do, the preferred one first."""

    @classmethod
    def of(cls, request: JoinGroupRequest, version: int) -> Terms:
        """v0 has no rebalance timeout: it is the session timeout."""
        session_timeout_ms = request.session_timeout_ms
        return cls(
            session_timeout_ms,
            request.rebalance_timeout_ms if version >= 1 else session_timeout_ms,
            {protocol.name: protocol.metadata for protocol in request.protocols},
        )

    @property
    def size_bytes(self) -> int:
        """About what they take in memory."""
        return sum(_PROTOCOL_BYTES + len(name) + len(metadata) for name, metadata in self.protocols.items())

    def agrees_with(self, other: Terms) -> bool:
        """The same protocols in the same order, with the same metadata."""
        return list(self.protocols.items()) == list(other.protocols.items())


class Join:
    """One JoinGroup request."""

    __slots__ = ("client", "new_id", "request", "terms", "ticket", "version")

    def __init__(
        self, request: JoinGroupRequest, version: int, client: Client, member_id_suffix: str, ticket: Ticket
    ) -> None:
        self.request = request
        self.version = version
        self.client = client
        self.new_id = f"{request.group_instance_id or client.id}-{member_id_suffix}"
        self.ticket = ticket
        self.terms = Terms.of(request, version)


class Identity(NamedTuple):
    """Under what id, and with what terms, a member stands in the log."""

    member_id: str
    terms: Terms


class Member:
    """A member waits for at most one answer of each kind; its tickets are here and in no other place."""

    __slots__ = (
        "_told",
        "assignment",
        "client",
        "counted_bytes",
        "heard_ms",
        "id",
        "instance_id",
        "is_new",
        "join_ticket",
        "session",
        "stored_as",
        "sync_ticket",
        "terms",
    )

    def __init__(self, member_id: str, instance_id: str | None, client: Client, terms: Terms, session: Timer) -> None:
        self.id = member_id
        self.instance_id = instance_id
        """group.instance.id of a static member (KIP-345)."""
        self.client = client
        self.session = session
        self.agree(terms)
        self.assignment = b""
        self.heard_ms = 0
        """When it last sent a request, or was given time anew."""
        self.counted_bytes = 0
        """As what it is counted among what the broker keeps; its group sees to that."""
        self.stored_as: Identity | None = None
        """Set while a new id of a static member is on its way into the log."""
        self.is_new = False
        """It waits for its first generation, and cannot heartbeat before."""
        self.join_ticket: Ticket = None
        self.sync_ticket: Ticket = None

    def agree(self, terms: Terms) -> None:
        """These are its terms from now on."""
        self.terms = terms
        self._told = self._told_of(next(iter(terms.protocols)))

    def told(self, protocol: str) -> JoinGroupResponseMember:
        """What a leader is told of it. It was made when the member joined, if this is the protocol that it prefers: to
        make it for all of a large group when a rebalance is complete takes long."""
        told = self._told
        if told.metadata is not self.terms.protocols[protocol] or told.member_id != self.id:
            told = self._told = self._told_of(protocol)
        return told

    def _told_of(self, protocol: str) -> JoinGroupResponseMember:
        metadata = self.terms.protocols[protocol]
        return JoinGroupResponseMember(member_id=self.id, group_instance_id=self.instance_id, metadata=metadata)

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        texts = len(self.id) + len(self.client.id) + len(self.client.host) + len(self.instance_id or "")
        return NEW_MEMBER_BYTES + texts + self.terms.size_bytes + len(self.assignment)

    @property
    def may_be_silent(self) -> bool:
        """While it waits for an answer it is not asked for heartbeats."""
        return not self.is_new and (self.join_ticket is not None or self.sync_ticket is not None)

    def stored(self, protocol: str, assignment: bytes) -> MemberMetadata:
        return MemberMetadata(
            member_id=self.id,
            group_instance_id=self.instance_id,
            client_id=self.client.id,
            client_host=self.client.host,
            rebalance_timeout=self.terms.rebalance_timeout_ms,
            session_timeout=self.terms.session_timeout_ms,
            subscription=self.terms.protocols[protocol],
            assignment=assignment,
        )

    def described(self, protocol: str | None) -> DescribedGroupMember:
        """With its metadata only if there is a protocol that all agreed on."""
        return DescribedGroupMember(
            member_id=self.id,
            group_instance_id=self.instance_id,
            client_id=self.client.id,
            client_host=self.client.host,
            member_metadata=b"" if protocol is None else self.terms.protocols[protocol],
            member_assignment=self.assignment,
        )
