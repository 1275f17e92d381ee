"""Members of the embedded store on a simulated machine, what goes wrong there, and what must hold whatever does.

The books are kept outside of all processes, so no fault touches them. What must hold:
- a change that was confirmed is in the store for ever, in the place that its owner was told;
- all processes see the same changes in the same order, across kills and power losses;
- a session that others have ended is not current in the eyes of its owner, and changes nothing any more;
- a session reads its own writes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tidelog.coordination import attachment as attachment_module
from tidelog.coordination.embedded import EmbeddedSession
from tidelog.coordination.entries import Changed, Ended, Entry, Opened, to_line
from tidelog.coordination.port import BadVersionError, CoordinationError, Create, NoNodeError, SessionState, Set
from tidelog.coordination.replica import Applied, Replica
from tidelog.coordination.tree import Tree
from tidelog.errors import StorageError
from tidelog.lab.process import PROCESS, SimProcess, current_process
from tidelog.lab.store import EmbeddedStore
from tidelog.lab.world import World

TIMEOUT_MS = 1000


class Books:
    """What members asked for and were told, and what their replicas applied."""

    def __init__(self) -> None:
        self.asked: set[bytes] = set()
        self.confirmed: dict[str, tuple[bytes, int]] = {}
        """Path to data and the number of the change that made it."""
        self.increments = 0
        self.perhaps = 0
        self.history: dict[int, bytes] = {}
        """The line behind each change, by its number."""
        self.ended: set[int] = set()
        self.sessions: dict[int, tuple[EmbeddedSession, SimProcess]] = {}
        self.closing: set[int] = set()
        self.sightings = 0

    def note(self, entry: Entry, applied: Applied, change_id: int, before: int) -> None:
        """A process has applied a line. Its number and its meaning are the same for all."""
        self.sightings += 1
        if isinstance(entry, Changed) and applied.events:
            assert entry.session not in self.ended or change_id in self.history, "an ended session changed something"
        if change_id != before and isinstance(entry, Opened | Changed | Ended):
            line = to_line(entry)
            assert self.history.setdefault(change_id, line) == line, f"change {change_id} is not the same for all"
        if isinstance(entry, Ended) and applied.ended is not None:
            self.ended.add(entry.session)
            session, process = self.sessions.get(entry.session, (None, None))
            if session is not None and process is not None and not process.dead and entry.session not in self.closing:
                assert not session.is_current(), "others ended a session whose owner believes in it"

    def check(self, tree: Tree) -> None:
        """At the end, when all is quiet."""
        for path, (data, created_id) in self.confirmed.items():
            node = tree.get(path)
            assert (node.data, node.stat.created_id) == (data, created_id), f"the confirmed change {path} is lost"
        for name in tree.children("/log"):
            assert tree.get(f"/log/{name}").data in self.asked
        counted = int(tree.get("/counter").data or b"0")
        assert self.increments <= counted <= self.increments + self.perhaps, "an increment is lost or made twice"


class _WatchedReplica(Replica):
    """Tells the books of each line."""

    books: Books

    def apply(self, entry: Entry) -> Applied:
        before = self.tree.change_id
        applied = super().apply(entry)
        if PROCESS.get() is not None:
            self.books.note(entry, applied, self.tree.change_id, before)
        return applied


@contextmanager
def watched(books: Books) -> Iterator[None]:
    """The books see every line that a process applies."""
    _WatchedReplica.books = books
    attachment_module.Replica = _WatchedReplica  # type: ignore[misc]
    try:
        yield
    finally:
        attachment_module.Replica = Replica  # type: ignore[misc]


class Members:
    """Processes that change the store as fast as it lets them, and are started again when they die."""

    def __init__(self, world: World, books: Books, count: int = 3, timeout_ms: int = TIMEOUT_MS) -> None:
        self.world = world
        self.store = EmbeddedStore(world)
        self.machine = self.store.machine
        self.books = books
        self.names = [f"m{number}" for number in range(count)]
        self.chance = world.chance_for("members")
        self._timeout_ms = timeout_ms
        self._requests = 0

    def start(self) -> None:
        """Those that are not running."""
        for name in self.names:
            if self.world.host(name).process is None:
                self.world.host(name).start(self._live(name))

    async def _live(self, name: str) -> None:
        while True:
            try:
                session = await self.store.connect(self._timeout_ms)
                self.books.sessions[session.id] = session, current_process()
                await self._work(name, session)
            except (CoordinationError, StorageError):
                await asyncio.sleep(self.chance.random() / 10)

    async def _work(self, name: str, session: EmbeddedSession) -> None:
        for path in ("/ids", "/log", "/counter"):
            await session.ensure(path)
        await session.create(f"/ids/{name}-{session.id}", ephemeral=True)
        for _ in range(self.chance.randrange(10, 200)):
            await self.chance.choice([self._add, self._add, self._count, self._both])(session)
            await asyncio.sleep(self.chance.choice([0.0, self.chance.random() / 20, self.chance.random() / 5]))
        self.books.closing.add(session.id)
        await session.close()
        assert session.state is SessionState.LOST

    async def _add(self, session: EmbeddedSession) -> None:
        data = self._data()
        path = await session.create("/log/n-", data, sequential=True)
        node = await session.get(path)
        self.books.confirmed[path] = (data, node.stat.created_id)
        assert node.data == data, "a session does not read its own write"

    async def _count(self, session: EmbeddedSession) -> None:
        node = await session.get("/counter")
        await self._increment(lambda data: session.set("/counter", data, node.stat.version), node.data)

    async def _both(self, session: EmbeddedSession) -> None:
        """A multi: the node is there if and only if the increment is."""
        node, data = await session.get("/counter"), self._data()
        ops: Callable[[bytes], list[Create | Set]] = lambda counted: [  # noqa: E731
            Set("/counter", counted, node.stat.version),
            Create("/log/n-", data, sequential=True),
        ]
        await self._increment(lambda counted: session.multi(ops(counted)), node.data)

    async def _increment(self, change: Callable[[bytes], object], before: bytes) -> None:
        self.books.perhaps += 1
        try:
            await change(b"%d" % (int(before or b"0") + 1))  # type: ignore[misc]
        except (BadVersionError, NoNodeError):
            self.books.perhaps -= 1
            return
        self.books.perhaps -= 1
        self.books.increments += 1

    def _data(self) -> bytes:
        self._requests += 1
        data = b"%d %s" % (self._requests, b"x" * self.chance.choice([0, 20, 20, 600]))
        self.books.asked.add(data)
        return data

    async def settle(self) -> None:
        """No more faults: all are started again, can write, and agree."""
        self.machine.disk.mend()
        self.machine.disk.doom.lift()
        for name in self.names:
            self.world.host(name).thaw()
        self.start()
        before = dict(self.books.confirmed)
        await asyncio.sleep(self._timeout_ms / 1e3 + 3)
        assert len(self.books.confirmed) > len(before), "the store does not come back"
        for name in self.names:
            self.world.host(name).kill()
        judge = self.world.host("judge").start(self._judge())
        await judge

    async def _judge(self) -> None:
        session = await self.store.connect(self._timeout_ms)
        self.books.sessions[session.id] = session, current_process()
        deadline = asyncio.get_running_loop().time() + self._timeout_ms / 1e3 + 1
        while await session.children("/ids"):
            assert asyncio.get_running_loop().time() < deadline, "ephemeral nodes of dead processes stay"
            await asyncio.sleep(0.01)
        await session.set("/ids", b"")
        self.books.check(session._attachment.replica.tree)
        assert session._attachment.replica.snapshot().tree == self.store.tree.snapshot()


class Saboteur:
    """One fault after the other, as chance will, on members and on the machine."""

    def __init__(self, members: Members, faults: tuple[str, ...]) -> None:
        self._members = members
        self._machine = members.machine
        self._world = members.world
        self._faults = faults
        self._chance: random.Random = members.world.chance_for("saboteur")

    async def run(self, faults: int) -> None:
        for _ in range(faults):
            await asyncio.sleep(self._chance.random() * 0.5)
            fault = self._chance.choice(self._faults)
            self._world.loop.note("fault", fault)
            await getattr(self, fault.replace(" ", "_"))()
            if self._chance.random() < 0.6:
                await asyncio.sleep(self._chance.random() * 0.3)
                self._members.start()
        self._members.start()

    def _a_host(self) -> str:
        return self._chance.choice(self._members.names)

    async def kill(self) -> None:
        self._world.host(self._a_host()).kill()

    async def die_in_a_change(self) -> None:
        self._machine.die_at(self._chance.randrange(1, 60))
        await asyncio.sleep(self._chance.random() * 0.3)

    async def freeze(self) -> None:
        host = self._world.host(self._a_host())
        host.freeze()
        await asyncio.sleep(self._chance.choice([0.3, 1.2, 3.0]) * self._chance.random())
        host.thaw()

    async def power_loss(self) -> None:
        self._machine.power_loss()
        self._members.start()

    async def power_loss_in_a_change(self) -> None:
        self._machine.die_at(self._chance.randrange(1, 60), power_loss=True)
        await asyncio.sleep(self._chance.random() * 0.3)
        self._members.start()

    async def full_disk(self) -> None:
        self._machine.fill(self._chance.randrange(2000))
        await asyncio.sleep(self._chance.random() * 2)
        self._machine.disk.capacity_bytes = None

    async def failing_sync(self) -> None:
        self._machine.disk.fail_next("sync", count=self._chance.choice([1, 1, 2, 5]))

    async def failing_write(self) -> None:
        self._machine.disk.fail_next("write", count=self._chance.choice([1, 1, 2, 5]))

    async def failing_read(self) -> None:
        self._machine.disk.fail_next("read", count=1, under="/store/coordination/journal")

    async def removed_session_file(self) -> None:
        files = [name for name in self._machine.list("/store/coordination") if name.startswith("session-")]
        if files:
            self._machine.remove(f"/store/coordination/{self._chance.choice(files)}")


FAULTS = (
    "kill",
    "die in a change",
    "freeze",
    "power loss",
    "power loss in a change",
    "full disk",
    "failing sync",
    "failing write",
    "failing read",
    "removed session file",
)


def run(seed: int, faults: tuple[str, ...] = FAULTS, count: int = 10) -> tuple[str, Books]:
    """One run; the digest of its trace, and the books."""
    books = Books()
    with World(seed) as world, watched(books):

        async def story() -> None:
            members = Members(world, books)
            members.start()
            await asyncio.sleep(0.1)
            await Saboteur(members, faults).run(count)
            await members.settle()

        world.run(story())
        return world.trace.digest(), books
