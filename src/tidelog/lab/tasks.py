"""Tasks, futures and callbacks of the simulated loop. Nothing about them differs from one run to the next."""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.lab.process import PROCESS, SimProcess

if TYPE_CHECKING:
    from tidelog.lab.loop import SimLoop

T = TypeVar("T")


class SimTask(asyncio.Task[T]):
    """A task that knows its process and hashes by its number.

    Sets of tasks (asyncio keeps some itself, in TaskGroup for one) are then walked in the same order in every run.
    """

    def __init__(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        loop: SimLoop,
        name: str | None = None,
        context: Context | None = None,
    ) -> None:
        self.number = loop.next_number()
        self.process = PROCESS.get() if context is None else context.get(PROCESS)
        self.program = coro
        if self.process is not None and isinstance(coro, types.CoroutineType):
            coro = _until_death(coro, self.process)
        super().__init__(coro, loop=loop, name=name or f"task-{self.number}", context=context)
        if self.process is not None:
            self.process.add(self)

    def __hash__(self) -> int:
        return self.number

    def discard(self) -> None:
        """The run is over: let go of what it was doing."""
        self._log_destroy_pending = False
        for coro in (self.program, self.get_coro()):
            with contextlib.suppress(Exception):
                coro.close()


async def _until_death(program: Coroutine[Any, Any, T], process: SimProcess) -> T:
    """The task in which its process dies does not end by that, whatever comes out: it stands still like all others."""
    try:
        result = await program
    except GeneratorExit:
        raise
    except BaseException:
        if not process.dead:
            raise
    else:
        if not process.dead:
            return result
    return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


class SimFuture(asyncio.Future[T]):
    """A future that hashes by its number, for the same reason. Few futures are ever hashed: those get a number.

    It knows the process that made it: what a dead process has not looked at is not missed.
    """

    def __init__(self, *, loop: SimLoop) -> None:
        super().__init__(loop=loop)
        self.process = PROCESS.get()

    @property
    def is_of_the_dead(self) -> bool:
        return self.process is not None and self.process.dead

    def __hash__(self) -> int:
        try:
            return self._number
        except AttributeError:
            loop: SimLoop = self.get_loop()  # type: ignore[assignment]
            self._number: int = loop.next_number()
            return self._number


class SimTimer(asyncio.TimerHandle):
    """A timer. It skips what asyncio does for its debug mode, which costs more than the rest."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: SimLoop,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        self._scheduled = True  # only then does cancel() tell the loop


class SimHandle(asyncio.Handle):
    """A callback that is ready, made as cheaply as SimTimer."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], loop: SimLoop, context: Context | None
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
