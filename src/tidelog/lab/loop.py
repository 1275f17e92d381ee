"""An event loop whose time is a number: it jumps to the next timer as soon as nothing is left to do.

Nothing here waits, reads a socket or starts a thread, so a run depends on its inputs alone.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import math
import socket
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, TypeVarTuple

from tidelog.lab.process import PROCESS, ProcessDied, SimProcess
from tidelog.lab.tasks import SimFuture, SimHandle, SimTask, SimTimer
from tidelog.lab.trace import Trace
from tidelog.lab.waiting import same_steps

if TYPE_CHECKING:
    from tidelog.lab.network import SimNetwork, SimServer

T = TypeVar("T")
Args = TypeVarTuple("Args")

_MOST_STEPS_AT_ONE_TIME = 2_000_000
_STEPS_BETWEEN_COLLECTIONS = 200_000
_FEWEST_CANCELLED_TO_SWEEP = 200


class SimulationError(Exception):
    """A run that cannot go on, or in which something failed that nobody waited for."""


class DeadlockError(SimulationError):
    """Nothing is ready and no timer is set: what is being waited for can never come."""


class SimLoop(asyncio.BaseEventLoop):
    """asyncio with virtual time.

    Callbacks run in the order they were scheduled, timers of one instant in the order they were set. Time
    moves only when nothing is ready. An exception that reaches nobody ends the run with a SimulationError.
    """

    _ready: deque[asyncio.Handle]
    _stopping: bool
    network: SimNetwork

    def __init__(self, trace: Trace | None = None) -> None:
        super().__init__()
        self.trace = trace if trace is not None else Trace()
        self.steps = 0
        self.limit_s = math.inf
        """A run that wants to go past this time has failed."""
        self._now = 0.0
        self._numbers = 0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._cancelled_timers = 0
        self._last_jump_step = 0
        self._next_collection = _STEPS_BETWEEN_COLLECTIONS
        self._failure: SimulationError | None = None

    def time(self) -> float:
        return self._now

    def next_number(self) -> int:
        """For things that need an order which is the same in every run."""
        self._numbers += 1
        return self._numbers

    def note(self, *details: str | int) -> None:
        """Write an event into the trace, at the present time."""
        self.trace.record(int(self._now * 1e9), self.steps, *details)

    def fail(self, message: str, cause: BaseException | None = None) -> None:
        """End the run after the present callback; the first failure is the one that counts."""
        if self._failure is None:
            self._failure = SimulationError(message)
            self._failure.__cause__ = cause

    def run_held(self, process: SimProcess) -> None:
        """A process has thawed: what came due for it runs now, in its order."""
        self._ready.extend(process.held)
        process.held.clear()

    # What asyncio asks of a loop

    def create_task(  # type: ignore[override]
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> SimTask[T]:
        return SimTask(coro, loop=self, name=name, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(loop=self)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = SimTimer(when, callback, args, self, context)
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._numbers, timer))
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = SimTimer(when := self._now + delay, callback, args, self, context)
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._numbers, timer))
        return timer

    def call_soon(
        self, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> asyncio.Handle:
        handle = SimHandle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Time-outs are nearly always cancelled long before they are due: sweep them out of the heap now and then."""
        if not handle._scheduled:  # type: ignore[attr-defined]  # it is due and has left the heap
            return
        self._cancelled_timers += 1
        if self._cancelled_timers > _FEWEST_CANCELLED_TO_SWEEP and self._cancelled_timers * 2 > len(self._timers):
            self._timers[:] = [timer for timer in self._timers if not timer[2]._cancelled]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        cause = context.get("exception")
        future = context.get("future")
        if isinstance(cause, ProcessDied) or (isinstance(future, SimFuture) and future.is_of_the_dead):
            return
        source = context.get("task") or context.get("future") or context.get("handle") or ""
        self.fail(f"{context.get('message')}: {cause!r} {source}", cause)

    def run_forever(self) -> None:
        with same_steps():
            super().run_forever()

    def _write_to_self(self) -> None:
        """Wakes a loop that sleeps in the kernel; this one never does."""

    def _run_once(self) -> None:
        """Turn after turn, until the loop is told to stop.

        A turn runs all that is ready. What a callback makes ready runs in the next turn, after the timers that are due.
        """
        ready, timers, process_of = self._ready, self._timers, PROCESS
        while True:
            if not ready:
                self._jump()
            while timers and timers[0][0] <= self._now:
                timer: Any = heapq.heappop(timers)[2]
                timer._scheduled = False
                if timer._cancelled:
                    self._cancelled_timers -= 1
                else:
                    ready.append(timer)
            for _ in range(len(ready)):
                handle: Any = ready.popleft()
                if handle._cancelled:
                    continue
                context = handle._context
                process: SimProcess | None = context.get(process_of)
                if process is not None and (process.dead or process.frozen):
                    if not process.dead:
                        process.held.append(handle)
                    continue
                self.steps += 1
                try:
                    context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as failure:
                    message = f"Exception in callback {handle._callback!r}"
                    self.call_exception_handler({"message": message, "exception": failure, "handle": handle})
                if self._failure is not None:
                    failed, self._failure = self._failure, None
                    raise failed
            if self.steps >= self._next_collection:
                self._keep_in_bounds()
            if self._stopping:
                return

    def _jump(self) -> None:
        """On to the next timer that still counts."""
        while self._timers and self._timers[0][2]._cancelled:
            heapq.heappop(self._timers)
            self._cancelled_timers -= 1
        if self._timers:
            self._now = max(self._now, self._timers[0][0])
            if self._now > self.limit_s:
                raise SimulationError(f"not done after {self.limit_s} s; waiting: {self._who_waits()}")
            self._last_jump_step = self.steps
        elif not self._stopping:
            raise DeadlockError(f"nothing is ready and no timer is set at {self._now} s; waiting: {self._who_waits()}")

    def _keep_in_bounds(self) -> None:
        """Every so many steps: whether time stands still need not be known at once."""
        self._next_collection = self.steps + _STEPS_BETWEEN_COLLECTIONS
        if self.steps - self._last_jump_step > _MOST_STEPS_AT_ONE_TIME:
            raise SimulationError(f"time stands still at {self._now} s: something never stops scheduling itself")
        if not gc.isenabled():
            gc.collect()

    def _who_waits(self) -> str:
        waiting = sorted((task for task in asyncio.all_tasks(self) if isinstance(task, SimTask)), key=hash)
        names = ", ".join(f"{task.get_name()} of {task.process or 'the lab'} in {_place(task)}" for task in waiting)
        return names or "no task"

    # The network

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: Any = None, port: Any = None, **options: Any
    ) -> SimServer:
        _refuse_options(options, ("ssl", "sock"))
        return self.network.listen(protocol_factory, host, port or 0)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: Any = None, port: Any = None, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        _refuse_options(options, ("ssl", "sock", "local_addr"))
        return await self.network.connect(protocol_factory, host, port)

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:
        """A name is its own address."""
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

    # What has no place here

    def run_in_executor(self, *args: Any) -> NoReturn:  # type: ignore[override]
        raise SimulationError("the simulator has no threads; work for the disk goes through Disk.submit")

    def add_reader(self, *args: Any) -> NoReturn:  # type: ignore[override]
        raise SimulationError("the simulator has no file descriptors to watch")

    def add_writer(self, *args: Any) -> NoReturn:  # type: ignore[override]
        raise SimulationError("the simulator has no file descriptors to watch")

    def add_signal_handler(self, *args: Any) -> NoReturn:  # type: ignore[override]
        raise SimulationError("a simulated process gets no signals; kill or freeze it through its SimHost")

    async def create_datagram_endpoint(self, *args: Any, **options: Any) -> NoReturn:
        raise SimulationError("the simulated network has streams only")

    async def subprocess_exec(self, *args: Any, **options: Any) -> NoReturn:
        raise SimulationError("the simulator starts no operating system processes")

    async def subprocess_shell(self, *args: Any, **options: Any) -> NoReturn:
        raise SimulationError("the simulator starts no operating system processes")


def _place(task: SimTask[Any]) -> str:
    """The chain of awaits, down to where it waits."""
    places = []
    coro: Any = task.program
    while isinstance(coro, types.CoroutineType) and coro.cr_frame is not None:
        places.append(f"{coro.cr_code.co_qualname}:{coro.cr_frame.f_lineno}")
        coro = coro.cr_await
    return " > ".join(places) or "nothing"


def _refuse_options(options: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if options.get(name):
            raise SimulationError(f"the simulated network does not know the option {name}")
