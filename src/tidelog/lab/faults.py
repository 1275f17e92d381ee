"""Single faults, each to its end: what can happen to a broker, its disk, its links, its clock and its session.

A kill keeps the page cache. A power loss does not; see tidelog.lab.power for what that is allowed to hit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from tidelog.lab.means import Means

ENDS = (
    "kill",
    "stop",
    "kill cut off",
    "back to back",
    "burst",
    "slow heirs",
    "frozen heir",
    "all at once",
    "die in a write",
    "controller",
    "roll",
    "full disk",
    "failing disk",
)
"""After these the broker is started again."""
TROUBLE = (
    "freeze",
    "cut",
    "cut one",
    "cut controller",
    "slow",
    "session",
    "flapping",
    "store",
    "store restarts",
    "reset",
    "clock",
    "kill a client",
    "freeze a client",
)
SLOW_CLIENT = "slow a client"
LOSSES = ("power loss", "power loss of a newcomer", "power loss and kills")
BLACKOUT = "power loss of all"
"""Only where a run may lose it: see `PowerBudget.is_unlimited`."""
POWER = (*ENDS, *(LOSSES[0],) * 4, *(LOSSES[1],) * 2, *(LOSSES[2],) * 5)
SETTLED_S = 60.0
_LOOK_S = 0.05


class Faults:
    """Faults that come alone."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._cluster = means.cluster
        self._network = means.network
        self._partitions = means.partitions
        self._chance = means.chance
        self.known: dict[str, Callable[[int], Awaitable[None]]] = {
            "kill": self.kill,
            "stop": self.stop,
            "kill cut off": self.kill_cut_off,
            "die in a write": self.die_in_a_write,
            "controller": self.kill_controller,
            "roll": self.roll,
            "full disk": self.fill_disk,
            "failing disk": self.fail_disk,
            "freeze": self.freeze,
            "cut": self.cut,
            "cut one": self.cut_one,
            "cut controller": self.cut_controller,
            "slow": self.slow,
            "session": self.expire_session,
            "store": self.lose_store,
            "store restarts": self.restart_store,
            "reset": self.reset,
            "clock": self.set_clock,
        }

    # Ends

    async def kill(self, number: int) -> None:
        self._cluster[number].kill()
        await self._means.start_again(number)

    async def stop(self, number: int) -> None:
        await self._cluster[number].stop()
        await self._means.start_again(number)

    async def kill_cut_off(self, number: int) -> None:
        """What it wrote meanwhile nobody else has."""
        self._cluster.cut_off(number)
        await self._means.pause(1.5)
        self._cluster[number].kill()
        self._cluster.heal(number)
        await self._means.start_again(number)

    async def die_in_a_write(self, number: int) -> None:
        one = self._cluster[number]
        one.host.die_at(self._chance.randrange(1, 60))
        await self._means.pause(3)
        one.host.disk.doom.lift()
        if one.host.process is None:
            one.disconnect()
            await self._means.start_again(number)

    async def kill_controller(self, number: int) -> None:
        await self.kill(self._cluster.controller or number)

    async def roll(self, number: int) -> None:
        """A rolling restart: one after the other, each once all are in sync again, or not for a long time."""
        for one in self._cluster.brokers:
            await self._cluster[one].stop()
            await self._means.start(one)
            self._means.note("again", f"b{one}")
            for index in self._partitions:
                await self._cluster.lookout.until(partial(self._is_whole, index), SETTLED_S, _LOOK_S)

    def _is_whole(self, index: int) -> bool:
        return len(self._cluster.isr(index)) > 2

    async def fill_disk(self, number: int) -> None:
        disk = self._cluster[number].host.disk
        disk.capacity_bytes = disk.used_bytes + self._chance.randrange(3000)
        await self._mend_disk(number)

    async def fail_disk(self, number: int) -> None:
        """Some writes, syncs or reads end with an error."""
        disk = self._cluster[number].host.disk
        directory = self._chance.choice(self._cluster[number].settings["log.dirs"].split(","))
        for action in self._chance.choice([["write"], ["sync"], ["read"], ["write", "sync"]]):
            disk.fail_next(action, count=self._chance.choice([1, 3, None]), under=directory)
        await self._mend_disk(number)

    async def _mend_disk(self, number: int) -> None:
        """A broker whose last log directory fails stops, as its process would; an operator mends one that lost some."""
        one = self._cluster[number]
        await self._means.pause(4)
        if one.is_up and (one.broker.failed.done() or one.broker.storage.is_partly_offline):
            self._means.note_state(number)
            one.kill()
        one.host.disk.mend()
        if one.host.process is None:
            await self._means.start_again(number)

    # Trouble

    async def freeze(self, number: int) -> None:
        host = self._cluster[number].host
        host.freeze()
        await self._means.pause(10)
        self._means.note_state(number)
        host.thaw()

    async def cut(self, number: int) -> None:
        self._cluster.cut_off(number)
        await self._means.pause(6)
        self._means.note_state(number)
        self._cluster.heal(number, reset=self._chance.random() < 0.5)

    async def cut_one(self, number: int) -> None:
        ends = (f"b{number}", f"b{self._means.other(number)}")
        self._network.cut(*ends, one_way=self._chance.random() < 0.5)
        await self._means.pause(6)
        self._means.note_state(number)
        self._network.heal(*ends, reset=self._chance.random() < 0.5)

    async def cut_controller(self, number: int) -> None:
        """From all other brokers, for longer than they bear, but not from the store: so its session lives on."""
        controller = self._cluster.controller or number
        self._cluster.cut_off(controller)
        await self._means.pause(20, 3)
        self._means.note_state(controller)
        self._cluster.heal(controller, reset=self._chance.random() < 0.5)

    async def slow(self, number: int) -> None:
        """A link that carries little, so that a follower lags and leaves the ISR."""
        ends = (f"b{number}", f"b{self._means.other(number)}")
        self._network.set_bandwidth(*ends, self._chance.choice([200.0, 2_000.0, 20_000.0]))
        await self._means.pause(6)
        self._means.note_state(number)
        self._network.set_bandwidth(*ends, None)

    async def expire_session(self, number: int) -> None:
        if self._cluster.is_running(number):
            self._cluster[number].expire_session()
            self._means.note_state(number)

    async def lose_store(self, number: int) -> None:
        """Nobody answers one broker, or any of them, for a while."""
        store, session = self._cluster.store, None
        if self._chance.random() < 0.7:
            if not self._cluster.is_running(number):
                return
            session = self._cluster[number].broker.session.id
        store.suspend(session)
        await self._means.pause(7)
        self._means.note_state(number)
        store.resume(session)

    async def restart_store(self, number: int) -> None:
        """Again and again, each time for longer or shorter than a session."""
        store = self._cluster.store
        for _ in range(self._chance.randrange(2, 7)):
            store.stop()
            await self._means.pause(self._chance.choice([0.5, 5.0]))
            self._means.note_state(number)
            store.start()
            await self._means.pause(1.5)

    async def reset(self, number: int) -> None:
        others = [*(f"b{other}" for other in self._cluster.brokers), *self._means.clients]
        self._network.reset(f"b{number}", self._chance.choice(others))

    async def set_clock(self, number: int) -> None:
        """An administrator or a bad NTP server sets the wall clock."""
        clock = self._cluster[number].host.clock
        clock.jump(self._chance.randrange(-3_600_000, 3_600_000))
        self._means.note("off by", clock.wall_ms() - self._cluster.store.clock.wall_ms(), f"b{number}")
