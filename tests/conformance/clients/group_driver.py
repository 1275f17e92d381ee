"""What members of a consumer group and its administrators can do, in one shape for all clients.

As with driver.py, nothing here repairs what a client does; what a client has no call for stands in its `lacks`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from driver import DEADLINE_S, ClientError, Driver, Record

Part = tuple[str, int]
Parts = frozenset[Part]
Offsets = Mapping[Part, int]

INVALID_GROUP_ID = 24
UNKNOWN_MEMBER_ID = 25
INCONSISTENT_GROUP_PROTOCOL = 23
NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69
GROUP_SUBSCRIBED_TO_TOPIC = 86

RANGE, ROUND_ROBIN, STICKY, COOPERATIVE = "range", "roundrobin", "sticky", "cooperative-sticky"
"""Names of the assignors in the protocol."""

HEARTBEAT_MS = 200
"""Short, because a member learns of a rebalance with its next heartbeat."""
METADATA_MAX_AGE_MS = 500
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Joining:
    """How a member is set up. It subscribes to topics or to the names that match a regular expression."""

    group: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    reset: str = "earliest"
    strategy: str = RANGE
    instance_id: str | None = None
    auto_commit: bool = False
    session_ms: int = 10_000
    poll_interval_ms: int = 300_000


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member as its group is described."""

    client_id: str
    host: str
    parts: Parts


@dataclass(frozen=True, slots=True)
class Group:
    state: str
    protocol_type: str
    protocol: str
    members: tuple[GroupMember, ...]


class Member:
    """A consumer of a group. It polls beside the case, from its start until it leaves or crashes.

    `read` is what it has read so far, `revoked` each set of partitions that was taken from it, where the client tells.
    """

    def __init__(self) -> None:
        self.read: list[Record] = []
        self.revoked: list[Parts] = []
        self.error: ClientError | None = None

    def share(self) -> Parts:
        """What it is assigned now."""
        raise NotImplementedError

    def commit(self, offsets: Offsets | None = None) -> None:
        """What it has read, or exactly these; returns when they are stored."""
        raise NotImplementedError

    def commit_async(self) -> None:
        """What it has read, with the client's other call; returns when the client told that it is stored."""
        raise NotImplementedError

    def committed(self, part: Part) -> int | None:
        raise NotImplementedError

    def position(self, part: Part) -> int:
        raise NotImplementedError

    def pause(self, part: Part) -> None:
        raise NotImplementedError

    def resume(self, part: Part) -> None:
        raise NotImplementedError

    def held(self) -> AbstractContextManager[None]:
        """It does not poll while this lasts; what the client does beside goes on."""
        raise NotImplementedError

    def leave(self) -> None:
        """Close it as a user would. Done twice it does nothing."""
        raise NotImplementedError

    def values(self) -> list[bytes | None]:
        return [record.value for record in list(self.read)]

    def wait_for(self, condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
        """ClientError if the client gives up before."""
        give_up_at = time.monotonic() + deadline_s
        while not condition():
            if self.error is not None:
                raise self.error
            assert time.monotonic() < give_up_at, f"{what}: has {sorted(self.share())} and {len(self.read)} records"
            time.sleep(_POLL_S)

    def wait_for_share(self, parts: Iterable[Part], deadline_s: float = DEADLINE_S) -> None:
        wanted = frozenset(parts)
        self.wait_for(lambda: self.share() == wanted, f"wants {sorted(wanted)}", deadline_s)

    def wait_for_records(self, count: int) -> list[Record]:
        self.wait_for(lambda: len(self.read) >= count, f"wants {count} records")
        return list(self.read)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()


class Doomed(AbstractContextManager["Doomed"]):
    """A member that will crash: its process is ended, so that its sockets close and nobody said goodbye."""

    def wait_for_share(self) -> None:
        """Until it has any partition."""
        raise NotImplementedError

    def crash(self) -> None:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.crash()


class GroupDriver(Driver):
    """A client as a member of groups and as their administrator."""

    least_poll_interval_ms = 2000
    """The smallest max.poll.interval.ms that it takes."""
    usual_protocol = RANGE
    """What a group of it uses if the case does not say."""

    def join(self, joining: Joining) -> Member:
        """Starts a member; it need not have joined when this returns."""
        raise NotImplementedError

    def doomed(self, joining: Joining) -> Doomed:
        raise NotImplementedError

    def list_groups(self) -> dict[str, str]:
        """The protocol type of each group; empty where the client only tells names."""
        raise NotImplementedError

    def describe_group(self, group: str) -> Group:
        raise NotImplementedError

    def delete_group(self, group: str) -> None:
        raise NotImplementedError

    def list_group_offsets(self, group: str) -> dict[Part, int]:
        raise NotImplementedError

    def alter_group_offsets(self, group: str, offsets: Offsets) -> None:
        raise NotImplementedError

    def delete_group_offsets(self, group: str, parts: Iterable[Part]) -> None:
        raise NotImplementedError
