"""The port through which a cluster agrees, shaped like ZooKeeper.

A tree of nodes, each with data and a version. An ephemeral node goes with the session that made it. A watch is
handed to a read and is called once, on the loop, at the first change after that read: who wants to know more reads
again. One and the same watch that is left twice on a node is called once. All changes have one order, and a session
sees them in that order, its own writes among them: it is told of a change before it can read it. Another session's
change may reach it a little late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from tidelog.errors import TidelogError

ANY_VERSION = -1


class CoordinationError(TidelogError):
    """What a call on the tree can end with. `path` names the node."""

    def __init__(self, path: str = "") -> None:
        super().__init__(f"{type(self).__name__}: {path}")
        self.path = path


class NoNodeError(CoordinationError):
    """There is no such node, or the one to create has no parent."""


class NodeExistsError(CoordinationError):
    """The node to create is there already."""


class BadVersionError(CoordinationError):
    """Somebody else changed the node first."""


class NotEmptyError(CoordinationError):
    """A node with children is not deleted."""


class NoChildrenForEphemeralsError(CoordinationError):
    """An ephemeral node has no children."""


class SessionLostError(CoordinationError):
    """The session is over: its ephemeral nodes are gone, and nothing more can be done with it."""


class ConnectionLostError(CoordinationError):
    """Nobody answered. Whether the change was made is not known; the session may live on."""


class Stat(NamedTuple):
    """What is known of a node beside its data."""

    version: int
    """Of the data: 0 when created, then counted up."""
    children_version: int
    created_id: int
    """The number of the change that created it. It only grows, so a broker's is its epoch (S12)."""
    modified_id: int
    owner: int
    """The session of an ephemeral node, else 0."""


class Node(NamedTuple):
    data: bytes
    stat: Stat


class EventKind(Enum):
    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILDREN = "children"


class Event(NamedTuple):
    """What a watch is told; of a lost session it is told nothing, state listeners are."""

    kind: EventKind
    path: str


Watch: TypeAlias = Callable[[Event], None]


class Create(NamedTuple):
    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False
    """The name gets a number of ten digits behind it, higher than any before under this parent."""


class Set(NamedTuple):
    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    """Changes nothing, but the multi it is in fails unless the node has that version."""

    path: str
    version: int


Op: TypeAlias = Create | Set | Delete | Check
OpResult: TypeAlias = str | Stat | None
"""The path of a Create, the new Stat of a Set, else None."""


class SessionState(Enum):
    """What it means to the owner of a session."""

    CONNECTED = "connected"
    """Calls work."""
    SUSPENDED = "suspended"
    """The store does not answer just now, for however long; the ephemeral nodes may still be there. `is_current` says
    whether that is sure. The session goes on when the store answers again, unless it has expired by then: a store that
    was away itself gives its sessions a new timeout."""
    LOST = "lost"
    """Over for good: the store has said so, or it was closed here. The ephemeral nodes are gone, or will be."""


StateListener: TypeAlias = Callable[[SessionState], None]


class Session(Protocol):
    """One member's standing with the store. Calls raise a CoordinationError."""

    @property
    def id(self) -> int: ...

    @property
    def state(self) -> SessionState: ...

    def is_current(self) -> bool:
        """Now is before (when the last successful renewal was sent) + session timeout.

        False says that the session may be over. It is True again if a later renewal shows that it is not.
        Cheap; to be asked before every act of a leader or controller, so that a process that was frozen and
        wakes up does not act on what it was.
        """
        ...

    def listen(self, listener: StateListener) -> None:
        """Called on the loop at each change of state, never within `listen` itself."""
        ...

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        """NoNodeError leaves no watch behind; `exists` does. The watch hears CHANGED or DELETED."""
        ...

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """The watch hears CREATED, CHANGED or DELETED."""
        ...

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names, sorted. The watch hears CHILDREN when one comes or goes, or DELETED."""
        ...

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        """The path, with its number if sequential. The parent must be there."""
        ...

    async def ensure(self, path: str) -> None:
        """Create the node and its parents, empty, where they are missing."""
        ...

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat: ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None: ...

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        """All or nothing. The error raised is that of the first op that failed, with its path."""
        ...

    async def close(self) -> None:
        """End the session; it is LOST, and its ephemeral nodes are gone, when this returns. Harmless if it is over."""
        ...


class Coordination(Protocol):
    """A store to hold sessions with."""

    async def connect(self, session_timeout_ms: int) -> Session:
        """A CoordinationError means that it did not come about; it may be tried again."""
        ...
