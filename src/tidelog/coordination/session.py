"""What the sessions of our own homes share: the calls of the port, made of one way to read and one to change."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum

from tidelog.coordination.port import (
    ANY_VERSION,
    Create,
    Delete,
    Node,
    NodeExistsError,
    Op,
    OpResult,
    SessionState,
    Set,
    Stat,
    StateListener,
    Watch,
)
from tidelog.coordination.tree import Tree, check_path
from tidelog.coordination.watches import Watches


class Question(Enum):
    """What a read asks the tree."""

    GET = "get"
    EXISTS = "exists"
    CHILDREN = "children"


Answer = Node | Stat | list[str] | None


def answer(tree: Tree, watches: Watches, question: Question, path: str, watch: Watch | None) -> Answer:
    """Read and leave the watch in one step, so that no change falls in between. An error leaves no watch."""
    found: Answer
    if question is Question.GET:
        found = tree.get(path)
    elif question is Question.EXISTS:
        found = tree.exists(path)
    else:
        found = tree.children(path)
    if watch is not None:
        if question is Question.CHILDREN:
            watches.add_for_children(path, watch)
        else:
            watches.add(path, watch)
    return found


class TreeSession(ABC):
    """A session with a `Tree`, wherever that is kept.

    Always: the state never leaves LOST, and listeners hear each change of it once, in a turn of the loop of its own.
    """

    def __init__(self) -> None:
        self._state = SessionState.CONNECTED
        self._listeners: list[StateListener] = []

    @property
    @abstractmethod
    def id(self) -> int: ...

    @property
    def state(self) -> SessionState:
        return self._state

    @abstractmethod
    def is_current(self) -> bool: ...

    def listen(self, listener: StateListener) -> None:
        self._listeners.append(listener)

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def _ask(self, question: Question, path: str, watch: Watch | None) -> Answer: ...

    @abstractmethod
    async def _transact(self, ops: Sequence[Op]) -> list[OpResult]: ...

    def _turn(self, state: SessionState) -> bool:
        """Go to that state and tell the listeners. False if it is there already, or lost for good."""
        if self._state in (state, SessionState.LOST):
            return False
        self._state = state
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.call_soon(listener, state)
        return True

    # The calls of the port

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        check_path(path)
        found = await self._ask(Question.GET, path, watch)
        assert isinstance(found, Node)
        return found

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        check_path(path)
        found = await self._ask(Question.EXISTS, path, watch)
        assert found is None or isinstance(found, Stat)
        return found

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        check_path(path)
        found = await self._ask(Question.CHILDREN, path, watch)
        assert isinstance(found, list)
        return found

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        [created] = await self.multi([Create(path, data, ephemeral, sequential)])
        assert isinstance(created, str)
        return created

    async def ensure(self, path: str) -> None:
        check_path(path)
        names = path[1:].split("/") if path != "/" else []
        for depth in range(1, len(names) + 1):
            ancestor = "/" + "/".join(names[:depth])
            if await self.exists(ancestor) is None:
                with contextlib.suppress(NodeExistsError):  # somebody else was faster
                    await self.create(ancestor)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        [stat] = await self.multi([Set(path, data, version)])
        assert isinstance(stat, Stat)
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self.multi([Delete(path, version)])

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        for op in ops:
            check_path(op.path)
        return await self._transact(list(ops))
