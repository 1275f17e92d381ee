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

import tidelog.spark.met as met_module
import tidelog.spark.stream as stream_module
from tests.kits.clientkit import P0, P1, values
from tests.kits.fake_broker import FakeBroker, FakeCluster
from tests.kits.processkit import free_port
from tidelog.client.errors import BrokerError
from tidelog.errors import ErrorCode
from tidelog.spark.connected import Connected
from tidelog.spark.errors import DataLossError, OptionError
from tidelog.spark.offsets import OffsetRange, Offsets, Position, from_json, initial_of, position_of
from tidelog.spark.options import read_options
from tidelog.spark.source import RangePartition
from tidelog.spark.stream import TidelogStreamReader


class Brokers:
    """Fake brokers on real sockets, on a loop of their own: the source runs a loop on the test's thread."""

    def __init__(self, cluster_id: str = "fake") -> None:
        self.fake = FakeCluster(cluster_id)
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
    monkeypatch.setattr(met_module, "_MET", {})
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
        chosen = options if "subscribePattern" in options else {"subscribe": "orders", **options}
        given = {"kafka.bootstrap.servers": f"127.0.0.1:{port}", **chosen}
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


def test_edge_39_a_first_batch_that_failed_is_read_again_from_where_it_began(
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
    after = _through_text(reader.latestOffset(end, ALL))
    assert from_json(after) == {P0: 11, P1: 0}
    assert initial_of(after) is None, "the note of where it began has done its work"


def test_checkpoints_without_a_note(brokers: Brokers, make: Callable[..., TidelogStreamReader]) -> None:
    """Of former versions, and of Spark's own connector."""
    plain = {"orders": {"0": 7, "1": 0}}
    reader = make(startingOffsets="earliest")
    assert _ranges(reader.partitions(plain, {"orders": {"0": 9, "1": 0}})) == [OffsetRange(P0, 7, 9)]
    assert from_json(_through_text(reader.latestOffset(plain, ALL))) == {P0: 10, P1: 0}
    assert _ranges(reader.partitions(reader.initialOffset(), plain)) == [OffsetRange(P0, 0, 7)]


def test_a_checkpoint_without_topic_ids_gets_them_with_the_next_micro_batch(
    brokers: Brokers, make: Callable[..., TidelogStreamReader]
) -> None:
    reader = make()
    plain = {"orders": {"0": 10, "1": 0}}
    assert reader.latestOffset(plain, ALL) == plain, "no micro-batch is run for them alone"
    brokers.fill(2)
    end = _through_text(reader.latestOffset(plain, ALL))
    assert position_of(end) == Position({P0: 12, P1: 0}, {"orders": brokers.fake.topic_id("orders")}, "fake")
    (part,) = reader.partitions(plain, end)
    assert isinstance(part, RangePartition)
    assert (part.range, part.topic_id) == (OffsetRange(P0, 10, 12), brokers.fake.topic_id("orders"))


# A topic that is gone, or another


TOLERANT = {"failOnDataLoss": "false", "fetchOffset.retryIntervalMs": "0", "startingOffsets": "latest"}


def _renew(brokers: Brokers, count: int) -> None:
    brokers.call(lambda: brokers.fake.make_anew("orders"))
    brokers.fill(count)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_query_whose_topic_is_gone_goes_on_and_reads_the_next_one_from_its_start(
    brokers: Brokers, make: Callable[..., TidelogStreamReader], caplog: pytest.LogCaptureFixture, restarted: bool
) -> None:
    def again(running: TidelogStreamReader) -> TidelogStreamReader:
        return make(**TOLERANT) if restarted else running

    reader = make(**TOLERANT)
    first = _through_text(reader.latestOffset(reader.initialOffset(), ALL))
    assert reader.partitions(reader.initialOffset(), first) == []
    brokers.call(brokers.fake.leaders.clear)
    reader = again(reader)
    nothing = _through_text(reader.latestOffset(first, ALL))
    assert from_json(nothing) == {}
    assert reader.partitions(first, nothing) == []
    assert [f"partition {p}, from offset {o} on" in caplog.text for p, o in ((0, 10), (1, 0))] == [True, True]
    reader = again(reader)
    assert reader.latestOffset(nothing, ALL) == nothing, "it waits, whatever startingOffsets says"
    brokers.call(lambda: brokers.fake.leaders.update({P0: 1, P1: 1}))
    _renew(brokers, 7)
    reader = again(reader)
    end = _through_text(reader.latestOffset(nothing, ALL))
    assert _ranges(reader.partitions(nothing, end)) == [OffsetRange(P0, 0, 7)]


def test_a_checkpoint_of_a_former_version_that_ends_at_nothing(
    brokers: Brokers, make: Callable[..., TidelogStreamReader]
) -> None:
    """It has {} where a topic was gone. Spark does not ask for the initial offset then."""
    reader = make(**TOLERANT)
    end = _through_text(reader.latestOffset({}, ALL))
    assert _ranges(reader.partitions({}, end)) == [OffsetRange(P0, 0, 10)]


def test_a_first_micro_batch_without_partitions_is_planned_again(
    brokers: Brokers, make: Callable[..., TidelogStreamReader]
) -> None:
    """Spark's own connector has written it, and the query was killed before it was done."""
    reader = make(startingOffsets="latest")
    assert reader.partitions(reader.initialOffset(), {}) == []


@pytest.mark.parametrize("count", [2, 10, 13])
def test_a_topic_made_anew_between_two_triggers_is_lost_and_read_from_its_start(
    brokers: Brokers, make: Callable[..., TidelogStreamReader], caplog: pytest.LogCaptureFixture, count: int
) -> None:
    """Be it shorter than what was read of the old one, as long, or longer; whether the query ran or not."""
    first = make(**TOLERANT, maxOffsetsPerTrigger="5")
    start = _through_text(first.latestOffset(first.initialOffset(), ReadMaxRows(5)))
    assert from_json(start) == {P0: 10, P1: 0}
    _renew(brokers, count)
    for reader in (first, make(**TOLERANT, maxOffsetsPerTrigger="5")):
        caplog.clear()
        end = _through_text(reader.latestOffset(start, ReadMaxRows(5)))
        assert _ranges(reader.partitions(start, end)) == [OffsetRange(P0, 0, min(5, count))]
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == 2
        assert "topic orders, partition 0, from offset 10 on: topic orders was deleted and made again" in told[0]
        after = _through_text(reader.latestOffset(end, ReadMaxRows(5)))
        assert _ranges(reader.partitions(end, after)) == ([OffsetRange(P0, 5, min(10, count))] if count > 5 else [])
        assert len(caplog.records) == 2, "it is told once"


def test_a_topic_made_anew_ends_a_query_that_must_not_lose_data(
    brokers: Brokers, make: Callable[..., TidelogStreamReader]
) -> None:
    reader = make(**{**TOLERANT, "failOnDataLoss": "true"})
    start = _through_text(reader.latestOffset(reader.initialOffset(), ALL))
    _renew(brokers, 12)
    end = _through_text(reader.latestOffset(start, ALL))
    for other in (reader, make()):
        with pytest.raises(DataLossError, match="partition 0, from offset 10 on: topic orders was deleted and made"):
            other.partitions(start, end)


def test_a_topic_made_anew_as_the_query_begins_is_read_from_its_start(
    brokers: Brokers, make: Callable[..., TidelogStreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two questions, where it begins and where it ends."""
    reader = make(**TOLERANT)
    asked = reader._starting

    def starting() -> Position:
        found = asked()
        _renew(brokers, 12)
        return found

    monkeypatch.setattr(reader, "_starting", starting)
    end = _through_text(reader.latestOffset(reader.initialOffset(), ALL))
    assert _ranges(reader.partitions(reader.initialOffset(), end)) == [OffsetRange(P0, 0, 12)]


def test_a_micro_batch_that_is_held_back_keeps_a_topic_made_anew_for_the_next_one(
    brokers: Brokers, make: Callable[..., TidelogStreamReader]
) -> None:
    reader = make(**TOLERANT, minOffsetsPerTrigger="5", maxTriggerDelay="1h")
    limit = reader.getDefaultReadLimit()
    start = _through_text(reader.latestOffset(reader.initialOffset(), limit))
    _renew(brokers, 4)
    assert reader.latestOffset(start, limit) == start
    brokers.fill(1)
    end = _through_text(reader.latestOffset(start, limit))
    assert _ranges(reader.partitions(start, end)) == [OffsetRange(P0, 0, 5)]


def test_a_task_reads_nothing_of_another_topic_than_it_was_planned_for(
    brokers: Brokers, make: Callable[..., TidelogStreamReader], caplog: pytest.LogCaptureFixture
) -> None:
    reader = make(**TOLERANT, **{"directRead": "false", "kafka.request.timeout.ms": "300"})
    start = {"orders": {"0": 2, "1": 0}}
    (part,) = reader.partitions(start, _through_text(reader.latestOffset(start, ALL)))
    _renew(brokers, 20)
    assert _batches_read(reader, part) == 0
    assert "from offset 2 up to 10: topic orders was deleted and made again, and 2 was to be read" in caplog.text


# Trigger.AvailableNow


def test_a_topic_that_appears_as_available_now_begins_is_read(
    brokers: Brokers, make: Callable[..., TidelogStreamReader]
) -> None:
    """It is there when the query asks where it begins, and was not when it asked where it ends."""
    other = P0._replace(topic="orders-2")
    options = {"subscribePattern": "orders.*", "startingOffsets": "earliest"}
    first = make(**options)
    first.prepareForTriggerAvailableNow()
    brokers.call(lambda: brokers.fake.leaders.update({other: 1}))
    brokers.call(lambda: brokers.fake.append(other, bytes(values(4))))
    end = _through_text(first.latestOffset(first.initialOffset(), ALL))
    expected = [OffsetRange(P0, 0, 10), OffsetRange(other, 0, 4)]
    assert _ranges(first.partitions(first.initialOffset(), end)) == expected
    brokers.call(lambda: brokers.fake.append(other, bytes(values(4))))
    assert first.latestOffset(end, ALL) == end, "it ends though more comes"
    again = make(**options)
    again.prepareForTriggerAvailableNow()
    assert _ranges(again.partitions(again.initialOffset(), end)) == expected


# Brokers


def test_tasks_are_told_of_all_brokers(brokers: Brokers, make: Callable[..., TidelogStreamReader]) -> None:
    ports = [brokers.start(2), brokers.start(3)]
    reader = make(startingOffsets="earliest")
    (part,) = reader.partitions({"orders": {"0": 0, "1": 0}}, {"orders": {"0": 10, "1": 0}})
    assert isinstance(part, RangePartition)
    assert {port for _, port in part.known.addresses} == {brokers.fake.brokers[1].port, *ports}


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
    monkeypatch.setattr(met_module, "_MET", {})  # a process that has met nobody
    assert _batches_read(make(directRead="false"), part) == 10
    # And the driver goes on, whose connection to that broker ended as well.
    reader.stop()
    assert from_json(_through_text(reader.latestOffset({"orders": {"0": 3, "1": 0}}, ALL))) == {P0: 10, P1: 0}


def test_a_process_remembers_the_brokers_that_it_met(
    brokers: Brokers, make: Callable[..., TidelogStreamReader]
) -> None:
    """As a task of a sink does whose driver met no broker: Spark uses its process again."""
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
