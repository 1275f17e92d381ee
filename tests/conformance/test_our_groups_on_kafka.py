"""Our groups on Apache Kafka: the client, the members and `tidelog groups`, beside Kafka's own tool and librdkafka.

What is played here needs nothing but a coordinator: `TARGETS` says whose.
"""

from __future__ import annotations

import asyncio
import csv
import json
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer
from confluent_kafka import Producer as ConfluentProducer

from peers import home
from peers.clients import create_topic
from peers.kafka import KraftBroker, ZooKeeperBroker
from peers.tools import JavaShell
from peers.zookeeper import ZooKeeper
from tests.conformance.clients.targets import Server, TidelogServer
from tidelog.cli.main import main
from tidelog.client.addresses import parse_bootstrap
from tidelog.client.admin import Admin
from tidelog.client.cluster import Cluster
from tidelog.client.consumer_protocol import encode_subscription
from tidelog.client.errors import BrokerError
from tidelog.client.group_offsets import CommittedOffset, commit_offsets, committed_offsets, delete_offsets
from tidelog.client.groups import delete_groups, describe_group, describe_groups, list_groups
from tidelog.client.membership import Member
from tidelog.client.produce import Producer
from tidelog.client.seat import MemberSettings, Seat
from tidelog.errors import ErrorCode
from tidelog.groups.assignors import ASSIGNORS, COOPERATIVE_STICKY, RANGE, STICKY, Assignor, Subscription
from tidelog.records.build import build_batch
from tidelog.types import TopicPartition

pytestmark = pytest.mark.jvm

T = TypeVar("T")
DEADLINE_S = 60
POLL_S = 0.05
TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
SETTINGS: dict[str, str | int] = {"group.min.session.timeout.ms": 500, "group.initial.rebalance.delay.ms": 0}
QUICK = MemberSettings(session_timeout_ms=3_000, heartbeat_interval_ms=200, rebalance_timeout_ms=20_000)

KAFKA, KAFKA_3, TIDELOG = "kafka", "kafka-3", "tidelog"
TARGETS = (KAFKA, KAFKA_3, TIDELOG)

_NUMBERS = count()


@pytest.fixture(scope="module", params=TARGETS)
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory: Path = tmp_path_factory.mktemp(f"our-groups-on-{request.param}")
    server: Server
    if request.param == TIDELOG:
        server = TidelogServer(directory, SETTINGS)
    elif request.param == KAFKA:
        server = KraftBroker(directory, settings=SETTINGS)
    else:
        zookeeper: ZooKeeper = request.getfixturevalue("zookeeper")
        connect = f"{zookeeper.connect}/our-groups"
        server = ZooKeeperBroker(directory, zookeeper, settings={**SETTINGS, "zookeeper.connect": connect})
    with server:
        yield server


@pytest.fixture(scope="module")
def java() -> Iterator[JavaShell]:
    with JavaShell(home.KAFKA_KRAFT) as shell:
        yield shell


class Place(NamedTuple):
    """A broker, and a topic and a group of one test on it."""

    bootstrap: str
    topic: str
    group: str

    def partitions(self, *numbers: int) -> list[TopicPartition]:
        return [TopicPartition(self.topic, number) for number in numbers]

    def run(self, story: Callable[[Cluster], Awaitable[T]]) -> T:
        async def whole() -> T:
            async with asyncio.timeout(DEADLINE_S):
                addresses = parse_bootstrap(self.bootstrap)
                async with await Cluster.open(addresses, random=random.Random(1)) as cluster:
                    return await story(cluster)

        return asyncio.run(whole())

    def tidelog(self, *arguments: str, exits: int = 0) -> str:
        """What the command prints; of one that has to fail, its complaint."""
        result = CliRunner().invoke(main, ["groups", *arguments], env={"TIDELOG_BOOTSTRAP": self.bootstrap})
        assert result.exit_code == exits, result.output
        return result.stdout if exits == 0 else result.stderr

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.tidelog(*arguments, "--json").splitlines()]

    def offsets(self) -> dict[int, int | None]:
        (described,) = self.rows("describe", self.group)
        return {row["partition"]: row["current_offset"] for row in described["offsets"]}


@pytest.fixture
def place(broker: Server, request: pytest.FixtureRequest) -> Place:
    name = f"{request.node.originalname.removeprefix('test_')}-{next(_NUMBERS)}"
    create_topic(broker.bootstrap, name, partitions=4)
    return Place(broker.bootstrap, name, f"group-{name}")


def kafka_tool(java: JavaShell, place: Place, *arguments: str) -> str:
    options = ["--bootstrap-server", place.bootstrap, "--group", place.group, *arguments]
    answer = java.ask({"op": "tool", "main": TOOL, "arguments": options, "given": ""})
    assert answer["status"] == 0, answer
    out: str = answer["out"]
    return out


def table(text: str) -> list[dict[str, str]]:
    """The rows of a table that Kafka's tool printed, by the names of its columns."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    start = next(number for number, line in enumerate(lines) if line[0] == "GROUP")
    return [dict(zip(lines[start], line, strict=True)) for line in lines[start + 1 :]]


async def write(cluster: Cluster, topic: str, times: dict[int, Sequence[int]]) -> None:
    """Records with these timestamps in these partitions."""
    await cluster.topic(topic)
    producer = Producer(cluster)
    for number, stamps in times.items():
        producer.send(TopicPartition(topic, number), build_batch([(stamp, None, b"v") for stamp in stamps]))
    await producer.flush()
    producer.close()


async def until(condition: Callable[[], bool]) -> None:
    """The deadline is the story's."""
    while not condition():
        await asyncio.sleep(POLL_S)


# Offsets and groups from outside


def test_offsets_from_outside(place: Place) -> None:
    p0, p1, p2 = place.partitions(0, 1, 2)

    async def story(cluster: Cluster) -> None:
        assert await committed_offsets(cluster, place.group) == {}
        await commit_offsets(cluster, place.group, {p1: CommittedOffset(0, 0, "note"), p0: 4})
        assert await committed_offsets(cluster, place.group) == {
            p0: CommittedOffset(4),
            p1: CommittedOffset(0, 0, "note"),
        }
        assert list(await committed_offsets(cluster, place.group, [p2, p1])) == [p1]
        described = await describe_group(cluster, place.group)
        assert (described.state, described.members, described.is_active) == ("Empty", [], False)
        assert await delete_offsets(cluster, place.group, [p0]) == {p0: None}
        assert list(await committed_offsets(cluster, place.group)) == [p1]
        results = await delete_groups(cluster, [place.group, "no-such-group"])
        assert results[place.group] is None
        failure = results["no-such-group"]
        assert failure is not None
        assert failure.code is ErrorCode.GROUP_ID_NOT_FOUND
        assert (await describe_groups(cluster, [place.group]))[place.group].state == "Dead"
        with pytest.raises(BrokerError) as refused:
            await describe_group(cluster, place.group)
        assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND

    place.run(story)


def test_an_active_group_from_outside(place: Place) -> None:
    (p0,) = place.partitions(0)

    async def story(cluster: Cluster) -> None:
        async with Member(cluster, place.group, [place.topic], settings=QUICK) as member:
            described = await describe_group(cluster, place.group)
            assert (described.state, described.protocol_type, described.protocol) == ("Stable", "consumer", "range")
            (seen,) = described.members
            assert (seen.member_id, seen.client_id, tuple(seen.assignment)) == (
                member.member_id,
                "tidelog",
                member.assignment.partitions,
            )
            assert "127.0.0.1" in seen.host
            stable = {one.group: one.state for one in await list_groups(cluster, states=["Stable"])}
            assert stable[place.group] == "Stable"
            assert place.group not in [one.group for one in await list_groups(cluster, states=["Empty"])]
            with pytest.raises(BrokerError) as refused:
                await commit_offsets(cluster, place.group, {p0: 1})
            assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID
            failure = (await delete_groups(cluster, [place.group]))[place.group]
            assert failure is not None
            assert failure.code is ErrorCode.NON_EMPTY_GROUP
            (deleted,) = (await delete_offsets(cluster, place.group, [p0])).values()
            assert deleted is not None
            assert deleted.code is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        assert place.group in [one.group for one in await list_groups(cluster, states=["Empty"], types=["classic"])]

    place.run(story)


# Members


@pytest.mark.parametrize("name", ASSIGNORS)
def test_members_come_and_go(place: Place, name: str) -> None:
    assignors = [ASSIGNORS[name]]
    heard: list[tuple[str, str, int]] = []

    def listeners(who: str) -> dict[str, Any]:
        def hear(what: str) -> Callable[[tuple[TopicPartition, ...]], Awaitable[None]]:
            async def note(partitions: tuple[TopicPartition, ...]) -> None:
                heard.append((who, what, len(partitions)))

            return note

        return {f"on_{what}": hear(what) for what in ("assigned", "revoked", "lost")}

    async def story(cluster: Cluster) -> None:
        def member(who: str) -> Member:
            return Member(cluster, place.group, [place.topic], assignors=assignors, settings=QUICK, **listeners(who))

        def shares(*members: Member) -> list[int]:
            return sorted(len(one.assignment.partitions) for one in members)

        async with member("a") as a:
            assert a.assignment.partitions == tuple(place.partitions(0, 1, 2, 3))
            async with member("b") as b:
                await until(lambda: shares(a, b) == [2, 2])
                held = {*a.assignment.partitions, *b.assignment.partitions}
                assert held == {*place.partitions(0, 1, 2, 3)}
                of_a = a.assignment.partitions[0]
                await a.commit({of_a: 7})
                assert await b.committed(place.partitions(0, 1, 2, 3)) == {of_a: CommittedOffset(7)}
                with pytest.raises(BrokerError) as refused:
                    await b.commit({of_a: 6})
                assert refused.value.code is ErrorCode.REBALANCE_IN_PROGRESS
            await until(lambda: shares(a) == [4])
        assert await committed_offsets(cluster, place.group) == {of_a: CommittedOffset(7)}

    place.run(story)
    gave_up_of_a = [count for who, what, count in heard if (who, what) == ("a", "revoked")]
    assert gave_up_of_a == ([2, 4] if assignors[0].is_cooperative else [4, 2, 4])
    assert [count for who, what, count in heard if (who, what) == ("b", "revoked")] == [2]
    assert not any(what == "lost" for _, what, _ in heard)


def test_next_assignment_tells_every_change_once(place: Place) -> None:
    async def story(cluster: Cluster) -> None:
        async with Member(cluster, place.group, [place.topic], settings=QUICK) as a:
            first = await a.next_assignment()
            assert len(first.partitions) == 4
            waiting = asyncio.ensure_future(a.next_assignment())
            await asyncio.sleep(3 * QUICK.heartbeat_interval_ms / 1000)
            assert not waiting.done()
            async with Member(cluster, place.group, [place.topic], settings=QUICK):
                second = await waiting
                while len(second.partitions) != 2:
                    second = await a.next_assignment()
                assert second.generation > first.generation

    place.run(story)


def test_a_member_that_falls_silent_is_missed_after_its_session(place: Place) -> None:
    async def story(cluster: Cluster) -> None:
        async with await Cluster.open(parse_bootstrap(place.bootstrap), random=random.Random(2)) as other:
            silent = Seat(other, place.group, QUICK._replace(session_timeout_ms=1_000))
            protocols = {"range": encode_subscription(Subscription([place.topic]))}
            with pytest.raises(BrokerError) as required:
                await silent.join(protocols)
            assert required.value.code is ErrorCode.MEMBER_ID_REQUIRED
            joined = await silent.join(protocols)
            assert joined.leader == silent.member_id
            await silent.sync("range", {})
            began = time.monotonic()
            async with Member(cluster, place.group, [place.topic], settings=QUICK) as member:
                assert len(member.assignment.partitions) == 4
                assert 0.5 < time.monotonic() - began < DEADLINE_S / 2
                with pytest.raises(BrokerError) as unknown:
                    await silent.heartbeat()
                assert unknown.value.code is ErrorCode.UNKNOWN_MEMBER_ID

    place.run(story)


def test_a_static_member_comes_back_to_its_place_and_fences_who_sits_there(place: Place) -> None:
    static = QUICK._replace(group_instance_id="one", session_timeout_ms=20_000)

    def member(cluster: Cluster) -> Member:
        return Member(cluster, place.group, [place.topic], settings=static)

    async def story(cluster: Cluster) -> None:
        async with member(cluster) as first:
            before = first.assignment
        described = await describe_group(cluster, place.group)
        assert [one.instance_id for one in described.members] == ["one"]
        async with member(cluster) as second:
            assert second.assignment == before
            await second.commit({before.partitions[0]: 1})
            async with member(cluster):
                await second.next_assignment()
                with pytest.raises(BrokerError) as fenced:
                    await second.next_assignment()
                assert fenced.value.code is ErrorCode.FENCED_INSTANCE_ID

    place.run(story)


def test_the_leader_sees_that_a_topic_has_grown(place: Place) -> None:
    settings = QUICK._replace(metadata_max_age_ms=300)

    async def story(cluster: Cluster) -> None:
        async with Member(cluster, place.group, [place.topic, "not-there-yet"], settings=settings) as member:
            await Admin(cluster).create_partitions(place.topic, 6)
            await until(lambda: len(member.assignment.partitions) == 6)

    place.run(story)


def test_members_without_a_common_assignor_are_refused(place: Place) -> None:
    async def story(cluster: Cluster) -> None:
        async with Member(cluster, place.group, [place.topic], assignors=[RANGE], settings=QUICK):
            with pytest.raises(BrokerError) as refused:
                async with Member(cluster, place.group, [place.topic], assignors=[STICKY], settings=QUICK):
                    pass
            assert refused.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    place.run(story)


def test_leaving_does_not_wait_for_a_join_that_waits(place: Place) -> None:
    """The first member is busy giving up its partitions, so the join of the second is not answered."""
    busy = asyncio.Event()

    async def story(cluster: Cluster) -> None:
        done = asyncio.Event()

        async def slow(partitions: tuple[TopicPartition, ...]) -> None:
            busy.set()
            await done.wait()

        async with Member(cluster, place.group, [place.topic], settings=QUICK, on_revoked=slow) as first:
            second = Member(cluster, place.group, [place.topic], settings=QUICK)
            entering = asyncio.ensure_future(second.__aenter__())
            await busy.wait()
            began = time.monotonic()
            entering.cancel()
            await asyncio.gather(entering, return_exceptions=True)
            assert time.monotonic() - began < QUICK.session_timeout_ms / 1000
            done.set()
            await until(lambda: len(first.assignment.partitions) == 4)

    place.run(story)


class Rdkafka:
    """A consumer of librdkafka in the same group, polled by a thread."""

    def __init__(self, place: Place, assignor: Assignor) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": place.bootstrap,
                "group.id": place.group,
                "partition.assignment.strategy": assignor.name,
                "session.timeout.ms": 3000,
                "heartbeat.interval.ms": 200,
                "topic.metadata.refresh.interval.ms": 1000,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([place.topic])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self.assignment: list[int] = []

    def _poll(self) -> None:
        while not self._stop.is_set():
            self._consumer.poll(POLL_S)
            self.assignment = sorted(partition.partition for partition in self._consumer.assignment())
        self._consumer.close()

    def __enter__(self) -> Rdkafka:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_S)


@pytest.mark.parametrize("ours_leads", [True, False])
@pytest.mark.parametrize("assignor", [RANGE, COOPERATIVE_STICKY], ids=lambda assignor: assignor.name)
def test_one_group_with_librdkafka(place: Place, assignor: Assignor, ours_leads: bool) -> None:
    async def story(cluster: Cluster) -> None:
        ours = Member(cluster, place.group, [place.topic], assignors=[assignor], settings=QUICK)
        theirs = Rdkafka(place, assignor)

        def numbers() -> list[int]:
            return [partition.partition for partition in ours.assignment.partitions]

        async with AsyncExitStack() as stack:
            if ours_leads:
                await stack.enter_async_context(ours)
            stack.enter_context(theirs)
            if not ours_leads:
                await until(lambda: len(theirs.assignment) == 4)
                await stack.enter_async_context(ours)
            await until(lambda: len(numbers()) == 2 and sorted(numbers() + theirs.assignment) == [0, 1, 2, 3])
            theirs.__exit__()
            await until(lambda: numbers() == [0, 1, 2, 3])

    place.run(story)


# The commands


@pytest.fixture
def written(place: Place) -> Place:
    """Partition 0 has ten records, an hour apart, and four are gone; 1 has three of long ago; 2 and 3 have none."""
    now_ms = time.time_ns() // 1_000_000

    async def story(cluster: Cluster) -> None:
        hours = [now_ms - hour * 3_600_000 for hour in range(10, 0, -1)]
        await write(cluster, place.topic, {0: hours, 1: [1000, 2000, 3000]})
        await Admin(cluster).delete_records({TopicPartition(place.topic, 0): 4})
        await commit_offsets(cluster, place.group, dict(zip(place.partitions(0, 1, 2), (7, 3, 0), strict=True)))

    place.run(story)
    return place


def test_describe_shows_what_kafkas_tool_shows(written: Place, java: JavaShell) -> None:
    def compare() -> None:
        (ours,) = written.rows("describe", "--group", written.group)
        theirs = {int(row["PARTITION"]): row for row in table(kafka_tool(java, written, "--describe"))}
        assert sorted(theirs) == [row["partition"] for row in ours["offsets"]]
        for row in ours["offsets"]:
            shown = {name: "-" if value is None else str(value) for name, value in row.items()}
            other = theirs[row["partition"]]
            assert shown == {name: other[name.upper().replace("_", "-")] for name in row}
        (state,) = table(kafka_tool(java, written, "--describe", "--state").replace("COORDINATOR (ID)", "WHERE ID"))
        assert (state["STATE"], int(state["#MEMBERS"])) == (ours["state"], len(ours["members"]))

    async def story(cluster: Cluster) -> None:
        a, b = (Member(cluster, written.group, [written.topic], settings=QUICK) for _ in range(2))
        async with a, b:
            await asyncio.to_thread(compare)
            shown = await asyncio.to_thread(written.tidelog, "describe", written.group)
            assert "Stable  2 members  assignor range" in shown
            members = await asyncio.to_thread(written.tidelog, "describe", written.group, "--members")
            assert f"{written.topic}:0,1" in members

    compare()
    (described,) = written.rows("describe", written.group)
    lags = {
        row["partition"]: (row["current_offset"], row["log_end_offset"], row["lag"]) for row in described["offsets"]
    }
    assert lags == {0: (7, 10, 3), 1: (3, 3, 0), 2: (0, 0, 0)}
    assert "Empty  no members" in written.tidelog("describe", written.group)
    written.run(story)
    (listed,) = [row for row in written.rows("list", "--state", "empty") if row["group"] == written.group]
    assert listed["state"] == "Empty"
    assert "Empty" in written.tidelog("describe", written.group, "--state")
    assert written.group in written.tidelog("describe", "--all-groups")


def test_no_offset_is_not_lag_0(written: Place) -> None:
    async def story(cluster: Cluster) -> None:
        async with Member(cluster, written.group, [written.topic], settings=QUICK):
            (described,) = await asyncio.to_thread(written.rows, "describe", written.group)
            shown = await asyncio.to_thread(written.tidelog, "describe", written.group)
        rows = {row["partition"]: row for row in described["offsets"]}
        assert (rows[2]["current_offset"], rows[2]["lag"]) == (0, 0)
        assert (rows[3]["current_offset"], rows[3]["lag"]) == (None, None)
        assert shown.count("no offset") == 1

    written.run(story)


def test_lag_of_a_reader_that_waits_for_transactions(place: Place, broker: Server) -> None:
    """The one test here that needs a transaction coordinator too."""
    if isinstance(broker, TidelogServer):
        pytest.skip("tidelog has no transactions yet")
    producer = ConfluentProducer(
        {"bootstrap.servers": place.bootstrap, "transactional.id": place.group, "log_level": 0}
    )
    producer.init_transactions(DEADLINE_S)
    place.tidelog(
        "reset-offsets", place.group, "--to-earliest", "--topic", f"{place.topic}:0", "--new-group", "--execute"
    )
    producer.begin_transaction()
    producer.produce(place.topic, b"v", partition=0)
    producer.flush(DEADLINE_S)

    def lag(*arguments: str) -> int:
        (described,) = place.rows("describe", place.group, *arguments)
        found: int = described["offsets"][0]["lag"]
        return found

    assert (lag(), lag("--isolation", "read_committed")) == (1, 0)
    producer.commit_transaction(DEADLINE_S)
    give_up_at = time.monotonic() + DEADLINE_S
    while lag("--isolation", "read_committed") != 2:  # the record and the marker, which comes after the answer
        assert time.monotonic() < give_up_at


WAYS: dict[str, tuple[list[str], dict[int, int]]] = {
    "earliest": (["--to-earliest", "--topic", "TOPIC"], {0: 4, 1: 0, 2: 0, 3: 0}),
    "latest": (["--to-latest", "--topic", "TOPIC"], {0: 10, 1: 3, 2: 0, 3: 0}),
    "current": (["--to-current", "--topic", "TOPIC"], {0: 7, 1: 3, 2: 0, 3: 0}),
    "all topics": (["--to-earliest", "--all-topics"], {0: 4, 1: 0, 2: 0}),
    "offset": (["--to-offset", "2", "--topic", "TOPIC"], {0: 4, 1: 2, 2: 0, 3: 0}),
    "some partitions": (["--to-offset", "8", "--topic", "TOPIC:0,1"], {0: 8, 1: 3}),
    "forward": (["--shift-by", "2", "--all-topics"], {0: 9, 1: 3, 2: 0}),
    "back": (["--shift-by", "-2", "--topic", "TOPIC:0,1,2"], {0: 5, 1: 1, 2: 0}),
    "datetime": (["--to-datetime", "1970-01-01T00:00:01.500", "--topic", "TOPIC"], {0: 4, 1: 1, 2: 0, 3: 0}),
    "datetime of a zone": (["--to-datetime", "1970-01-01T01:00:01.500+01:00", "--topic", "TOPIC:1"], {1: 1}),
    "duration": (["--by-duration", "PT3H30M", "--topic", "TOPIC"], {0: 7, 1: 3, 2: 0, 3: 0}),
}


@pytest.mark.parametrize("way", WAYS)
def test_reset_offsets_plans_what_kafkas_tool_plans(written: Place, java: JavaShell, way: str) -> None:
    arguments, expected = WAYS[way]
    arguments = [argument.replace("TOPIC", written.topic) for argument in arguments]
    before = written.offsets()
    planned = {row["partition"]: row["new_offset"] for row in written.rows("reset-offsets", written.group, *arguments)}
    theirs = table(kafka_tool(java, written, "--reset-offsets", "--dry-run", *arguments))
    assert planned == {int(row["PARTITION"]): int(row["NEW-OFFSET"]) for row in theirs}
    assert planned == expected
    assert written.offsets() == before
    written.tidelog("reset-offsets", written.group, *arguments, "--execute")
    assert written.offsets() == {**before, **expected}


def test_what_is_exported_can_be_put_back(written: Place, java: JavaShell, tmp_path: Path) -> None:
    exported = written.tidelog("export", written.group)
    topics = ["--topic", f"{written.topic}:0,1,2"]
    theirs = kafka_tool(java, written, "--reset-offsets", "--to-current", *topics, "--export", "--dry-run")
    assert sorted(csv.reader(exported.split())) == sorted(csv.reader(theirs.split()))
    file = tmp_path / "offsets.csv"
    for text in (exported, theirs):
        file.write_text(text)
        written.tidelog("reset-offsets", written.group, "--to-earliest", *topics, "--execute")
        assert written.offsets() == {0: 4, 1: 0, 2: 0}
        written.tidelog("reset-offsets", "--group", written.group, "--from-file", str(file), "--execute")
        assert written.offsets() == {0: 7, 1: 3, 2: 0}


def test_a_reset_that_cannot_be_is_refused_whole(written: Place) -> None:
    before = written.offsets()

    def refused(*arguments: str, exits: int = 1) -> str:
        return written.tidelog("reset-offsets", written.group, *arguments, "--execute", exits=exits)

    assert "no committed offset to shift" in refused("--shift-by", "-1", "--topic", written.topic)
    assert "no partition 9" in refused("--to-latest", "--topic", f"{written.topic}:9")
    assert "does not exist" in refused("--to-latest", "--topic", "no-such-topic")
    assert "pass one of" in refused("--topic", written.topic, exits=2)
    assert "pass one of" in refused("--to-latest", "--to-earliest", "--topic", written.topic, exits=2)
    assert "name the partitions" in refused("--to-latest", exits=2)
    assert "name one group" in refused("--to-latest", "--topic", written.topic, "other-group", exits=2)
    assert written.offsets() == before

    async def story(cluster: Cluster) -> None:
        async with Member(cluster, written.group, [written.topic], settings=QUICK):
            complaint = await asyncio.to_thread(refused, "--to-latest", "--all-topics")
            assert "NON_EMPTY_GROUP" in complaint
            assert "Stable with 1 members" in complaint

    written.run(story)
    assert written.offsets() == before


def test_a_group_can_be_made_by_a_reset_and_deleted(place: Place) -> None:
    assert "GROUP_ID_NOT_FOUND" in place.tidelog("describe", place.group, exits=1)
    place.tidelog("reset-offsets", place.group, "--to-earliest", "--topic", place.topic, "--new-group", "--execute")
    assert place.offsets() == {0: 0, 1: 0, 2: 0, 3: 0}
    assert place.tidelog("delete", place.group, "--yes") == f"deleted group {place.group}\n"
    assert "GROUP_ID_NOT_FOUND" in place.tidelog("delete", place.group, "--yes", exits=1)
