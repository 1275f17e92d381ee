"""A world in a seed: hosts, network, disks, clocks and chance on one simulated loop.

    world = World(42)
    b1 = world.host("b1")
    world.run(story(world))         # or b1.start(broker(b1)) first

Equal seeds and equal code give equal traces, on any machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections.abc import Coroutine, Iterator
from contextvars import Context
from types import TracebackType
from typing import Any, Literal, TypeVar

from tidelog.lab.chance import stream
from tidelog.lab.clock import SimClock
from tidelog.lab.disk import SimDisk
from tidelog.lab.loop import SimLoop
from tidelog.lab.network import SimNetwork
from tidelog.lab.process import KERNEL, PROCESS, SimProcess
from tidelog.lab.tasks import SimTask
from tidelog.lab.trace import Trace
from tidelog.ports import Capacity

T = TypeVar("T")
_STEPS_WITHOUT_COLLECTION = 50_000
_CAPACITY = Capacity(client_connections=10_000, broker_connections=1000, memory_bytes=8 << 30)


class SimHost:
    """One machine: the three ports, and at most one process at a time.

    It is what `tidelog.ports.Ports` asks for, so production code is started with it as with a real machine.
    """

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.clock = SimClock(world.loop)
        self.random = world.chance_for(f"host {name}")
        self.disk = SimDisk(self.clock, world.chance_for(f"disk {name}"), name)
        self.process: SimProcess | None = None
        self._world = world
        self._lives = 0
        self._boots = 1
        self._last_end = ""
        self._waiting_for_end: list[asyncio.Future[None]] = []

    @property
    def capacity(self) -> Capacity:
        return _CAPACITY

    @property
    def boot_id(self) -> str:
        return f"{self.name} boot {self._boots}"

    def start(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a process with this. If it fails the run fails; its end or its kill makes room for the next."""
        if self.process is not None:
            raise RuntimeError(f"{self.process.name} is still running; kill it first")
        self._lives += 1
        process = self.process = SimProcess(self.name, self._lives)
        self._world.network.host_up(self.name)
        self._world.loop.note("start", process.name)
        context = Context()
        context.run(PROCESS.set, process)
        task = self._world.loop.create_task(main, name=process.name, context=context)
        task.add_done_callback(self._ended, context=KERNEL)
        return task

    def kill(self) -> None:
        """SIGKILL: no more of its code runs. The page cache stays, and the kernel closes its connections."""
        self._end("kill", silently=False)

    def power_loss(self) -> None:
        """The machine goes dark: what was not synced may be lost or torn, and nobody is told. `start` boots it."""
        self._lose_power(self._world.chance_for(f"power loss {self.name} {self._lives}"))

    def _lose_power(self, chance: random.Random) -> None:
        self._end("power loss", silently=True)
        self._world.network.host_down(self.name)
        self.disk.power_loss(chance)
        self._boots += 1

    def die_at(self, change: int, how: Literal["kill", "power loss"] = "kill") -> None:
        """`kill` or `power_loss` within a change to the disk: the next is 1, from now on or from the next start.

        Every write, truncation, sync, new name, rename and removal counts, in disk work and on the loop alike, and
        each step of `write_file`. Chance decides whether the change itself is still done, a write perhaps in part.
        If the process ends before, by itself or otherwise, that was it. See SimProcess for what runs after it.
        """
        chance = self._world.chance_for(f"death {self.name} {self._lives} {change}")
        self.disk.doom.set(change, chance, self.kill if how == "kill" else lambda: self._lose_power(chance))

    async def ended(self) -> str:
        """Wait until the process of this moment is over, and tell how the last one went: exit, kill or power loss.

        Another one may run by then: who has ended it may have started the next one in the same moment.
        """
        process = self.process
        while process is not None and self.process is process:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting_for_end.append(future)
            await future
        return self._last_end

    def freeze(self) -> None:
        """SIGSTOP: it keeps its connections and sees nothing, until `thaw` lets it catch up."""
        if self.process is not None:
            self._world.loop.note("freeze", self.process.name)
            self.process.frozen = True

    def thaw(self) -> None:
        if self.process is not None and self.process.frozen:
            self._world.loop.note("thaw", self.process.name)
            self.process.frozen = False
            self._world.loop.run_held(self.process)

    def _end(self, how: str, *, silently: bool) -> None:
        self._world.loop.note(how, self.name)
        process, self.process = self.process, None
        if process is None:
            return
        self._last_end = how
        process.dead = True
        self._world.bury(process)
        self._world.network.process_died(process, silently=silently)
        self.disk.kill()
        self.disk.doom.lift()
        for future in self._waiting_for_end:
            if not future.done():
                future.set_result(None)
        self._waiting_for_end.clear()

    def _ended(self, task: asyncio.Task[T]) -> None:
        """The main coroutine is over, so the process exits: what it left running stops as at a kill."""
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            self._world.loop.fail(f"{task.get_name()} failed: {failure!r}", failure)
        if self.process is not None and self.process.name == task.get_name():
            self._end("exit", silently=False)


class World:
    """Everything one run consists of. Use it as a context manager, or close it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.trace = Trace()
        self.loop = SimLoop(self.trace)
        self.network = SimNetwork(self.loop, self.chance_for)
        self.hosts: dict[str, SimHost] = {}
        self._buried: list[SimTask[Any]] = []

    def chance_for(self, name: str) -> random.Random:
        """A stream of random numbers of its own; see tidelog.lab.chance."""
        return stream(self.seed, name)

    def host(self, name: str) -> SimHost:
        found = self.hosts.get(name)
        if found is None:
            self.network.add_host(name)
            found = self.hosts[name] = SimHost(self, name)
        return found

    def run(self, main: Coroutine[Any, Any, T], *, limit_s: float = 3600.0) -> T:
        """Run until `main` is done, at most `limit_s` of virtual time. It belongs to no host: it tells the story."""
        self.loop.limit_s = self.loop.time() + limit_s
        with _collecting_at_fixed_points(self.loop):
            return self.loop.run_until_complete(self.loop.create_task(main, name="lab", context=Context()))

    def bury(self, process: SimProcess) -> None:
        """Keep the tasks of the dead: if they were collected, Python would run their `finally` blocks."""
        self._buried += process.tasks

    def close(self) -> None:
        for host in self.hosts.values():
            if host.process is not None:
                host.kill()
        for task in self._buried + _tasks_of_no_process(self.loop):
            task.discard()
        self.loop.close()

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _tasks_of_no_process(loop: SimLoop) -> list[SimTask[Any]]:
    tasks = [task for task in asyncio.all_tasks(loop) if isinstance(task, SimTask) and task.process is None]
    return sorted(tasks, key=hash)


_steps_since_collection = 0
_is_base_frozen = False


def freeze_base() -> None:
    """For a process that does nothing but run worlds: what is there now is never looked at again for garbage.

    That is far more than what a run leaves behind, so garbage can then be collected before every run.
    """
    global _is_base_frozen
    gc.collect()
    gc.freeze()
    _is_base_frozen = True


@contextlib.contextmanager
def _collecting_at_fixed_points(loop: SimLoop) -> Iterator[None]:
    """Finalizers and weak references act when garbage is found, so the loop decides when that is, by its steps.

    What was there before a run is frozen and cannot act in it, garbage or not. So a new world need not look for garbage
    first, which takes longer than most short runs do: it is enough to do that now and then.
    """
    global _steps_since_collection
    was_enabled = gc.isenabled()
    steps = loop.steps
    if _is_base_frozen:
        gc.collect()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()
        return
    if steps or _steps_since_collection > _STEPS_WITHOUT_COLLECTION:
        gc.collect()
        _steps_since_collection = 0
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        _steps_since_collection += loop.steps - steps
        if was_enabled:
            gc.enable()
