"""What Spark asks the streaming source on the driver: where it begins, also after a restart, and what a group shows."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import tidelog.spark.connected as connected_module
import tidelog.spark.stream as stream_module
from tests.clientkit import P0, P1, values
from tests.fake_broker import FakeBroker, FakeCluster
from tests.processkit import free_port
from tidelog.client.errors import BrokerError
from tidelog.errors import ErrorCode
from tidelog.spark.connected import Connected
from tidelog.spark.errors import OptionError
from tidelog.spark.offsets import OffsetRange, Offsets, from_json
from tidelog.spark.options import read_options
from tidelog.spark.source import RangePartition
from tidelog.spark.stream import TidelogStreamReader


class Brokers:
    """Fake brokers on real sockets, on a loop of their own: the source runs a loop on the test's thread."""

    def __init__(self) -> None:
        self.fake = FakeCluster()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], Any]) -> Any:
        """On the brokers' thread, where nothing else happens meanwhile."""

        async def main() -> Any:
            found = work()
            return await found if isinstance(found, Awaitable) else found

        return asyncio.run_coroutine_threadsafe(main(), self._loop).result(30)

    def start(self, number: int, port: int = 0) -> int:
        self.call(lambda: FakeBroker(self.fake, number).serve(port))
        return self.fake.brokers[number].port

    def stop(self, number: int) -> None:
        """It accepts no connection any more, and the others no longer name it."""
        self.call(lambda: self.fake.brokers.pop(number).close())

    def fill(self, count: int) -> None:
        self.call(lambda: self.fake.append(P0, bytes(values(count))))

    def close(self) -> None:
        for number in list(self.fake.brokers):
            self.stop(number)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Brokers]:
    monkeypatch.setattr(connected_module, "_MET", {})
    running = Brokers()
    running.fake.leaders = {P0: 1, P1: 1}
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def make(brokers: Brokers) -> Iterator[Callable[..., TidelogStreamReader]]:
    """Makes readers of a topic with ten records, whose only bootstrap broker is the first."""
    port = brokers.start(1)
    brokers.fill(10)
    made: list[TidelogStreamReader] = []

    def reader(**options: str) -> TidelogStreamReader:
        given = {"kafka.bootstrap.servers": f"127.0.0.1:{port}", "subscribe": "orders", **options}
        made.append(TidelogStreamReader(read_options(given, streaming=True)))
        return made[-1]

    yield reader
    for one in made:
        one.stop()


def _through_text(offsets: Any) -> dict[str, Any]:
    """As the checkpoint gives it back."""
    found: dict[str, Any] = json.loads(json.dumps(offsets))
    return found


def _ranges(partitions: Any) -> list[OffsetRange]:
    assert all(isinstance(one, RangePartition) for one in partitions)
    return [one.range for one in partitions]


ALL = ReadAllAvailable()


# Where it begins


def test_a_first_batch_that_failed_is_read_again_from_where_it_began(
    brokers: Brokers, make: Callable[..., TidelogStreamReader]
) -> None:
    first = make(startingOffsets="latest")
    start = first.initialOffset()
    brokers.fill(5)
    assert from_json(end := _through_text(first.latestOffset(start, ALL))) == {P0: 15, P1: 0}
    brokers.fill(3)
    assert _ranges(first.partitions(first.initialOffset(), end)) == []
    again = make(startingOffsets="latest")
    assert _ranges(again.partitions(again.initialOffset(), end)) == []
    assert from_json(_through_text(again.latestOffset(end, ALL))) == {P0: 18, P1: 0}


def test_the_start_is_asked_for_once(brokers: Brokers, make: Callable[..., TidelogStreamReader]) -> None:
    """Spark asks for it again when it runs the first micro-batch, and when that failed and the query starts again."""
    first = make(startingOffsets=json.dumps({"orders": {"0": 4, "1": -1}}), maxOffsetsPerTrigger="5")
    end = _through_text(first.latestOffset(first.initialOffset(), ReadMaxRows(5)))
    assert from_json(end) == {P0: 9, P1: 0}
    assert _ranges(first.partitions(first.initialOffset(), end)) == [OffsetRange(P0, 4, 9)]
    for other in ("latest", "earliest"):
        again = make(startingOffsets=other)
        assert _ranges(again.partitions(again.initialOffset(), end)) == [OffsetRange(P0, 4, 9)]


def test_a_start_that_is_no_longer_possible_does_not_stop_a_restart(
    brokers: Brokers, make: Callable[..., TidelogStreamReader]
) -> None:
    """The topic has got a partition that startingOffsets does not name."""
    first = make(startingOffsets=json.dumps({"orders": {"0": 4, "1": -2}}))
    end = _through_text(first.latestOffset(first.initialOffset(), ALL))
    brokers.call(lambda: brokers.fake.leaders.update({P1._replace(partition=2): 1}))
    again = make(startingOffsets=json.dumps({"orders": {"0": 4, "1": -2}}))
    assert _ranges(again.partitions(again.initialOffset(), end)) == [OffsetRange(P0, 4, 10)]


def test_no_news_are_the_same_text(brokers: Brokers, make: Callable[..., TidelogStreamReader]) -> None:
    """Spark compares the text, and would run an empty micro-batch for another one."""
    reader = make(startingOffsets="earliest")
    end = _through_text(reader.latestOffset(reader.initialOffset(), ALL))
    assert json.dumps(reader.latestOffset(end, ALL)) == json.dumps(end)
    brokers.fill(1)
    assert _through_text(reader.latestOffset(end, ALL)) == {"orders": {"0": 11, "1": 0}}, "the note has done its work"


def test_checkpoints_without_a_note(brokers: Brokers, make: Callable[..., TidelogStreamReader]) -> None:
    """Of former versions, and of Spark's own connector."""
    plain = {"orders": {"0": 7, "1": 0}}
    reader = make(startingOffsets="earliest")
    assert _ranges(reader.partitions(plain, {"orders": {"0": 9, "1": 0}})) == [OffsetRange(P0, 7, 9)]
    assert _through_text(reader.latestOffset(plain, ALL)) == {"orders": {"0": 10, "1": 0}}
    assert _ranges(reader.partitions(reader.initialOffset(), plain)) == [OffsetRange(P0, 0, 7)]


# Brokers


def test_tasks_are_told_of_all_brokers(brokers: Brokers, make: Callable[..., TidelogStreamReader]) -> None:
    ports = [brokers.start(2), brokers.start(3)]
    reader = make(startingOffsets="earliest")
    (part,) = reader.partitions({"orders": {"0": 0, "1": 0}}, {"orders": {"0": 10, "1": 0}})
    assert isinstance(part, RangePartition)
    assert {port for _, port in part.brokers} == {brokers.fake.brokers[1].port, *ports}


def _batches_read(reader: TidelogStreamReader, part: Any) -> int:
    return sum(batch.num_rows for batch in reader.read(part))


def test_a_task_begins_without_the_bootstrap_broker(
    brokers: Brokers, make: Callable[..., TidelogStreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers.start(2)
    brokers.call(lambda: brokers.fake.leaders.update({P0: 2, P1: 2}))
    reader = make(startingOffsets="earliest", directRead="false")
    (part,) = reader.partitions({"orders": {"0": 0, "1": 0}}, {"orders": {"0": 10, "1": 0}})
    brokers.stop(1)
    monkeypatch.setattr(connected_module, "_MET", {})  # a process that has met nobody
    assert _batches_read(make(directRead="false"), part) == 10
    # And the driver goes on, whose connection to that broker ended as well.
    reader.stop()
    assert from_json(_through_text(reader.latestOffset({"orders": {"0": 3, "1": 0}}, ALL))) == {P0: 10, P1: 0}


def test_a_process_remembers_the_brokers_that_it_met(
    brokers: Brokers, make: Callable[..., TidelogStreamReader]
) -> None:
    """As a task of a sink does, which the driver tells of no brokers: Spark uses its process again."""
    brokers.start(2)
    options = make(**{"kafka.default.api.timeout.ms": "3000"})._options

    async def count(cluster: Any) -> int:
        await cluster.refresh_once()
        return len(cluster.metadata.brokers)

    with Connected(options.addresses, options.client) as first:
        assert first.run(count) == 2
    brokers.stop(1)
    with Connected(options.addresses, options.client) as second:
        assert second.run(count) == 1


def test_nobody_answers_for_as_long_as_the_timeout_says(brokers: Brokers) -> None:
    port = free_port()
    given = {"kafka.bootstrap.servers": f"127.0.0.1:{port}", "subscribe": "t", "kafka.default.api.timeout.ms": "700"}
    reader = TidelogStreamReader(read_options(given, streaming=True))
    told = rf"option 'kafka.bootstrap.servers': no broker answers at 127.0.0.1:{port} in 700 ms"
    with pytest.raises(OptionError, match=told):
        reader.prepareForTriggerAvailableNow()
    later = threading.Timer(1, lambda: brokers.start(1, port))
    later.start()
    given = {**given, "subscribe": "orders", "kafka.default.api.timeout.ms": "30000"}
    patient = TidelogStreamReader(read_options(given, streaming=True))
    patient.prepareForTriggerAvailableNow()
    later.join()
    for one in (reader, patient):
        one.stop()


# A group


class Commits:
    """Takes the place of commit_offsets: fails with what it is told to, then keeps what it gets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures: list[ErrorCode] = []
        self.tries = 0
        self.kept: list[Offsets] = []
        monkeypatch.setattr(stream_module, "commit_offsets", self)

    async def __call__(self, cluster: Any, group: str, offsets: Offsets) -> None:
        self.tries += 1
        if self.failures:
            raise BrokerError(self.failures.pop(0), f"group {group}")
        self.kept.append(offsets)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    return Commits(monkeypatch)


def _trigger(reader: TidelogStreamReader) -> None:
    """A micro-batch has ended at offset 4."""
    reader.latestOffset({"orders": {"0": 4, "1": 0}}, ALL)


AWAY, JOINED = ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("code", [AWAY, JOINED])
def test_a_commit_that_failed_is_tried_again_though_nothing_is_new(
    make: Callable[..., TidelogStreamReader], commits: Commits, caplog: pytest.LogCaptureFixture, code: ErrorCode
) -> None:
    """Be the coordinator away or be it that somebody has joined the group, the query goes on."""
    reader = make(group="g")
    commits.failures = [code] * 2
    for _ in range(3):
        _trigger(reader)
    # A pause as long as the attempt took may have let a trigger pass.
    while not commits.kept:
        _trigger(reader)
    assert commits.kept == [{P0: 4, P1: 0}]
    assert len(caplog.records) == 1, "the same reason is told once"
    assert "group g does not show the query's progress, which is tried again" in caplog.text
    _trigger(reader)
    assert (commits.tries, len(commits.kept)) == (3, 1), "it is shown, so there is nothing to commit"


def test_a_coordinator_that_is_slow_does_not_hold_up_every_trigger(
    make: Callable[..., TidelogStreamReader], commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "_COMMIT_S", 0.5)
    reader, answer = make(group="g"), commits.__call__
    slow = 0

    async def silent(*ignored: Any) -> None:
        nonlocal slow
        slow += 1
        await asyncio.sleep(60)

    monkeypatch.setattr(stream_module, "commit_offsets", silent)
    for _ in range(5):
        _trigger(reader)
    assert slow == 1
    monkeypatch.setattr(stream_module, "commit_offsets", answer)
    while not commits.kept:
        _trigger(reader)


def test_a_query_that_begins_is_refused_a_group_with_members(
    make: Callable[..., TidelogStreamReader], commits: Commits
) -> None:
    reader = make(group="g")
    commits.failures = [JOINED]
    with pytest.raises(OptionError, match="option 'group': group g does not take the query's offsets"):
        reader.latestOffset(reader.initialOffset(), ALL)
