"""Which topics the members of a group read, found out some members at a time.

Consumers name their topics in the metadata of their protocols. It may be 1 MiB for each member, so to read all of it
takes long in a large group. It is needed only when offsets expire or are deleted. Therefore it is read then and not at
each rebalance, and nothing of it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidelog.errors import WireError
from tidelog.groups.group import CONSUMER, Group
from tidelog.groups.member import Member, Terms
from tidelog.wire.codec import decode_from
from tidelog.wire.messages.consumer_protocol import ConsumerProtocolSubscription

MAX_TOPICS = 100_000
"""Names in one subscription. One with more counts as one that cannot be read."""
_VERSION_BYTES = 2
_NAMES_OF_ELEMENT = 200
_BYTES_OF_ELEMENT = 20_000
"""To read so much of a subscription takes as long as to look at one element of a slice."""


class Subscriptions:
    """Which of some topics a group reads.

    Call `look` until it `is_complete`; members that joined meanwhile are read too. What it tells is right until the
    group changes, so it is asked right after that. If a subscription cannot be read, consumers are taken to read
    everything, as in Kafka.
    """

    def __init__(self, find: Callable[[], Group | None], topics: Iterable[str]) -> None:
        self._find = find
        """Finds the group; None if it is gone."""
        self._among = frozenset(topics)
        self._read: set[str] = set()
        self._reads_all = False
        self._seen: dict[str, tuple[Terms, str | None]] = {}
        """What was read of each member."""
        self._left: list[Member] = []

    def look(self, most: int) -> int:
        """Read members until about `most` elements were looked at; how many that were."""
        looked_at = 0
        while looked_at < most and not self.is_complete:
            looked_at += self._read_member(self._left.pop())
        return looked_at

    @property
    def is_complete(self) -> bool:
        """All members were read as they are now, or it is clear that the group reads everything."""
        if not self._left and not self._reads_all:
            self._left = self._unread()
        return self._reads_all or not self._left

    def reads(self, topic: str) -> bool:
        """Whether a member reads it, of those that were read."""
        return self._reads_all or topic in self._read

    def _unread(self) -> list[Member]:
        group, seen = self._find(), self._seen
        if group is None or group.protocol_type != CONSUMER:
            return []
        protocol = group.protocol
        unread = [
            member
            for member in group.members.values()
            if (known := seen.get(member.id)) is None or known[0] is not member.terms or known[1] != protocol
        ]
        for member in unread:
            seen[member.id] = member.terms, protocol
        return unread

    def _read_member(self, member: Member) -> int:
        """By the protocol that all agreed on. A member that came after that may not know it, so all of its protocols
        count. All versions of the consumer protocol begin like the first, after the version."""
        terms, protocol = self._seen[member.id]
        protocols = terms.protocols
        cost = 1
        for metadata in [protocols[protocol]] if protocol in protocols else protocols.values():
            try:
                subscription, _ = decode_from(ConsumerProtocolSubscription, metadata, 0, _VERSION_BYTES, MAX_TOPICS)
            except WireError:
                self._reads_all = True
                break
            self._read.update(self._among.intersection(subscription.topics))
            cost += len(subscription.topics) // _NAMES_OF_ELEMENT + len(metadata) // _BYTES_OF_ELEMENT
        return cost
