"""The tree and its sessions: the one rule book of every home that is ours.

Pure: transactions in, results and events out, no clock and no I/O. Equal transactions in equal order give equal trees,
numbers included, which is what lets the embedded home keep one per process and still agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tidelog.coordination.port import (
    ANY_VERSION,
    BadVersionError,
    Check,
    CoordinationError,
    Create,
    Delete,
    Event,
    EventKind,
    NoChildrenForEphemeralsError,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Op,
    OpResult,
    SessionLostError,
    Set,
    Stat,
)

ROOT = "/"


def parent_of(path: str) -> str:
    return path[: path.rindex("/")] or ROOT


def name_of(path: str) -> str:
    return path[path.rindex("/") + 1 :]


def check_path(path: str) -> None:
    """A bad path is a fault of the caller, so a ValueError."""
    if path != ROOT and (not path.startswith("/") or any(name in ("", ".", "..") for name in path[1:].split("/"))):
        raise ValueError(f"{path!r} is no path of a node: it starts with / and has no empty name, . or .. in it")


class Outcome(NamedTuple):
    """What came of a transaction: all results, or the error of the first op that failed and no change at all."""

    results: list[OpResult]
    error: CoordinationError | None
    events: list[Event]
    """In the order the ops were made."""


class _Entry:
    """A node as it is kept."""

    __slots__ = ("children", "children_version", "created_id", "data", "modified_id", "owner", "sequence", "version")

    def __init__(self, data: bytes, created_id: int, owner: int) -> None:
        self.data = data
        self.version = 0
        self.children_version = 0
        self.created_id = created_id
        self.modified_id = created_id
        self.owner = owner
        self.sequence = 0
        """The number that the next sequential child gets."""
        self.children: dict[str, None] = {}

    def stat(self) -> Stat:
        return Stat(self.version, self.children_version, self.created_id, self.modified_id, self.owner)


class Tree:
    """Nodes by path and who owns the ephemeral ones.

    Always: every node but the root has a parent, which is not ephemeral; the owner of an ephemeral node is a session
    that is open. `change_id` counts what changed anything: a transaction, a session opened or ended.
    """

    def __init__(self) -> None:
        self.change_id = 0
        self._entries: dict[str, _Entry] = {ROOT: _Entry(b"", 0, 0)}
        self._owned: dict[int, dict[str, None]] = {}
        """The ephemeral nodes of each open session."""

    # Reads

    def get(self, path: str) -> Node:
        entry = self._existing(path)
        return Node(entry.data, entry.stat())

    def exists(self, path: str) -> Stat | None:
        entry = self._entries.get(path)
        return None if entry is None else entry.stat()

    def children(self, path: str) -> list[str]:
        return sorted(self._existing(path).children)

    # Sessions

    @property
    def sessions(self) -> list[int]:
        """Those that are open, oldest first."""
        return list(self._owned)

    def is_open(self, session: int) -> bool:
        return session in self._owned

    def open_session(self) -> int:
        """Its id is the number of the change that opened it, so no two sessions ever share one."""
        self.change_id += 1
        self._owned[self.change_id] = {}
        return self.change_id

    def end_session(self, session: int) -> list[Event]:
        """Its ephemeral nodes go with it, in one change. Harmless if it is over."""
        if session not in self._owned:
            return []
        ops = [Delete(path) for path in sorted(self._owned[session])]
        outcome = self.transact(session, ops)
        if not ops:
            self.change_id += 1
        del self._owned[session]
        return outcome.events

    # Changes

    def transact(self, session: int, ops: Sequence[Op]) -> Outcome:
        """All of the ops, or none."""
        if session not in self._owned:
            return Outcome([], SessionLostError(), [])
        transaction = _Transaction(self._entries, self._owned, session, self.change_id + 1)
        try:
            results = [transaction.apply(op) for op in ops]
        except CoordinationError as error:
            transaction.undo()
            return Outcome([], error, [])
        if transaction.events:
            self.change_id += 1
        return Outcome(results, None, transaction.events)

    # The whole of it

    def snapshot(self) -> dict[str, Any]:
        """All that the tree is, in values that JSON can carry."""
        nodes = [
            [path, entry.data.decode("latin-1"), *entry.stat(), entry.sequence] for path, entry in self._entries.items()
        ]
        return {"change": self.change_id, "sessions": self.sessions, "nodes": nodes}

    @classmethod
    def restored(cls, snapshot: dict[str, Any]) -> Tree:
        tree = cls()
        tree.change_id = snapshot["change"]
        tree._owned = {session: {} for session in snapshot["sessions"]}
        for path, data, version, children_version, created_id, modified_id, owner, sequence in snapshot["nodes"]:
            entry = _Entry(data.encode("latin-1"), created_id, owner)
            entry.version, entry.children_version = version, children_version
            entry.modified_id, entry.sequence = modified_id, sequence
            tree._entries[path] = entry
            if owner:
                tree._owned[owner][path] = None
        for path in _below_root(tree._entries):
            tree._entries[parent_of(path)].children[name_of(path)] = None
        return tree

    def _existing(self, path: str) -> _Entry:
        entry = self._entries.get(path)
        if entry is None:
            raise NoNodeError(path)
        return entry


class _Transaction:
    """One change in the making: it works on the tree itself and knows how to take back each step."""

    def __init__(
        self, entries: dict[str, _Entry], owned: dict[int, dict[str, None]], session: int, change_id: int
    ) -> None:
        self.events: list[Event] = []
        self._entries = entries
        self._owned = owned
        self._session = session
        self._change_id = change_id
        self._steps_back: list[Callable[[], None]] = []

    def apply(self, op: Op) -> OpResult:
        if isinstance(op, Create):
            return self._create(op)
        if isinstance(op, Set):
            return self._set(op)
        if isinstance(op, Delete):
            self._delete(op)
        else:
            self._versioned(op)
        return None

    def undo(self) -> None:
        for step_back in reversed(self._steps_back):
            step_back()

    def _create(self, op: Create) -> str:
        if op.path == ROOT:
            raise NodeExistsError(op.path)
        parent = self._entries.get(parent_of(op.path))
        if parent is None:
            raise NoNodeError(op.path)
        if parent.owner:
            raise NoChildrenForEphemeralsError(op.path)
        path = f"{op.path}{parent.sequence:010d}" if op.sequential else op.path
        if path in self._entries:
            raise NodeExistsError(path)
        self._add(path, _Entry(op.data, self._change_id, self._session if op.ephemeral else 0), parent)
        parent.children_version += 1
        parent.sequence += op.sequential

        def step_back() -> None:
            self._remove(path, parent)
            parent.children_version -= 1
            parent.sequence -= op.sequential

        self._steps_back.append(step_back)
        self.events += (Event(EventKind.CREATED, path), Event(EventKind.CHILDREN, parent_of(path)))
        return path

    def _set(self, op: Set) -> Stat:
        entry = self._versioned(op)
        before = entry.data, entry.version, entry.modified_id

        def step_back() -> None:
            entry.data, entry.version, entry.modified_id = before

        self._steps_back.append(step_back)
        entry.data = op.data
        entry.version += 1
        entry.modified_id = self._change_id
        self.events.append(Event(EventKind.CHANGED, op.path))
        return entry.stat()

    def _delete(self, op: Delete) -> None:
        entry = self._versioned(op)
        if entry.children or op.path == ROOT:
            raise NotEmptyError(op.path)
        parent = self._entries[parent_of(op.path)]
        self._remove(op.path, parent)
        parent.children_version += 1

        def step_back() -> None:
            self._add(op.path, entry, parent)
            parent.children_version -= 1

        self._steps_back.append(step_back)
        self.events += (Event(EventKind.DELETED, op.path), Event(EventKind.CHILDREN, parent_of(op.path)))

    def _versioned(self, op: Set | Delete | Check) -> _Entry:
        entry = self._entries.get(op.path)
        if entry is None:
            raise NoNodeError(op.path)
        if op.version not in (ANY_VERSION, entry.version):
            raise BadVersionError(op.path)
        return entry

    def _add(self, path: str, entry: _Entry, parent: _Entry) -> None:
        self._entries[path] = entry
        parent.children[name_of(path)] = None
        if entry.owner:
            self._owned[entry.owner][path] = None

    def _remove(self, path: str, parent: _Entry) -> None:
        entry = self._entries.pop(path)
        del parent.children[name_of(path)]
        if entry.owner:
            del self._owned[entry.owner][path]


def _below_root(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if path != ROOT]
