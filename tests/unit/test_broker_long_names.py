"""Names of topics that there cannot be are as long as clients like. Nothing keeps them beyond their request."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from tests.kits.brokerkit import (
    FETCH_BY_NAME,
    PRODUCE_BY_NAME,
    Kit,
    fetch_request,
    fetched,
    produce_request,
    run,
    values_of,
    within,
)
from tests.kits.logkit import batch, idempotent
from tests.kits.memberkit import COMMIT, GROUP, commit_request, ready
from tests.unit.test_broker_fetch_sessions import Reader
from tests.unit.test_broker_long_waits import FOR_EVER_MS, make_unseen
from tidelog.broker.refusals import LIFETIME_MS
from tidelog.controller.topics import MAX_NAME_LENGTH, cut_name, is_valid_name, kept_names
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.wire import Message
from tidelog.wire.messages.offsets import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from tidelog.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
)

LONG = "x" * 30_000 + "\N{GRINNING FACE}"
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
IMPOSSIBLE = [LONG, "y" * (MAX_NAME_LENGTH + 1), "a b", "\N{GRINNING FACE}" * 200]
ONE = {"offsets_topic_replication_factor": "1", "offsets_topic_num_partitions": "1"}


def copies(text: str) -> int:
    """How many strings like this one are kept in memory, beside this one."""
    gc.collect()  # a handled exception and the frames that it came through may be a cycle, which is not kept
    found: set[int] = set()
    seen: set[int] = set()
    objects = gc.get_objects()
    while objects:
        inner = []
        for held in gc.get_referents(*objects):
            if type(held) is str:
                if len(held) == len(text) and held is not text and held == text:
                    found.add(id(held))
            elif isinstance(held, (tuple, dict)) and not gc.is_tracked(held) and id(held) not in seen:
                seen.add(id(held))
                inner.append(held)
        objects = inner
    return len(found)


def test_names_are_kept_as_they_were_sent_while_they_take_little_memory() -> None:
    short, longer = "a" * MAX_NAME_LENGTH, "a" * (MAX_NAME_LENGTH + 1)
    assert kept_names([short, longer])(longer) == longer
    assert kept_names([short] * 1_000 + [LONG])(LONG) == LONG
    assert kept_names([LONG, LONG])(LONG) == cut_name(LONG)
    assert kept_names([LONG, LONG])(short) == short


def test_a_cut_name_is_none_of_a_topic() -> None:
    longest = "a" * MAX_NAME_LENGTH
    assert cut_name(longest) == longest
    cut = cut_name(longest + "a")
    assert len(cut) == MAX_NAME_LENGTH
    assert not is_valid_name(cut)


# Produce


@pytest.mark.parametrize("name", IMPOSSIBLE, ids=len)
def test_a_refusal_is_not_remembered_for_a_name_that_no_topic_can_have(name: str) -> None:
    async def story(kit: Kit) -> None:
        assert (await kit.produce(idempotent(0), topic=name)).error_code == UNKNOWN
        assert not kit.broker.refusals
        assert (await kit.produce(idempotent(0), topic="to.come")).error_code == UNKNOWN
        assert len(kit.broker.refusals) == 1

    run(story)


def test_refusals_are_forgotten_though_none_follows() -> None:
    async def story(kit: Kit) -> None:
        await kit.produce(idempotent(0), topic="to.come")
        assert len(kit.broker.refusals) == 1
        await eventually(lambda: not kit.broker.refusals, 2 * LIFETIME_MS / 1000)

    run(story)


def test_a_produce_that_waits_keeps_no_long_name() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        assert await kit.lead_and_isr(isr=[1, 2], replicas=[1, 2]) == 0
        request = produce_request({("t", 0): batch(), (LONG, 0): batch()}, timeout_ms=15_000)
        waiting = (await kit.connect()).send(request, PRODUCE_BY_NAME)
        await eventually(lambda: kit.broker._dispatcher._parked)
        assert not copies(LONG)
        found = {topic.name: topic.partition_responses[0].error_code for topic in (await waiting).responses}
        assert found == {"t": ErrorCode.REQUEST_TIMED_OUT, cut_name(LONG): UNKNOWN}

    run(story)


# Fetch


@pytest.mark.parametrize("name", IMPOSSIBLE, ids=len)
def test_a_session_does_not_keep_a_name_that_no_topic_can_have(name: str) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        reader = Reader(kit)
        async with within(1.0):
            found = await reader.fetch({("t", 0): 0, (name, 0): 0, (name, 7): 0}, max_wait_ms=60_000)
        assert {key: answer.error_code for key, answer in found.items()} == {
            ("t", 0): 0,
            (name, 0): UNKNOWN,
            (name, 7): UNKNOWN,
        }
        assert kit.broker.fetch_sessions._total.count == 1
        async with within(1.0):
            assert list(await reader.fetch({(name, 0): 0}, max_wait_ms=60_000)) == [(name, 0)], "named, so told again"
        await kit.produce()
        assert values_of((await reader.fetch(forget=[(name, 7)]))["t", 0]) == [b"value"]
        assert kit.broker.fetch_sessions._total.count == 1
        del found
        assert not copies(name)

    run(story)


def test_very_many_names_that_no_topic_can_have_are_all_refused() -> None:
    async def story(kit: Kit) -> None:
        names = [f"/{number}" for number in range(3_000)]
        found = await Reader(kit).fetch({(name, 0): 0 for name in names})
        assert {name for name, _ in found} == {*names}
        assert {answer.error_code for answer in found.values()} == {UNKNOWN}
        assert kit.broker.fetch_sessions._total.count == 0

    run(story)


def test_a_session_tells_of_a_topic_that_comes_into_being() -> None:
    async def story(kit: Kit) -> None:
        reader = Reader(kit)
        assert (await reader.fetch({("to.come", 0): 0}))["to.come", 0].error_code == UNKNOWN
        assert (await reader.fetch())["to.come", 0].error_code == UNKNOWN
        await kit.create_topic("to.come")
        await kit.produce(topic="to.come")
        assert values_of((await reader.fetch())["to.come", 0]) == [b"value"]

    run(story)


def test_a_request_that_waits_keeps_no_client_id() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        client = await kit.connect()
        client.client_id = LONG
        waiting = client.send(fetch_request({("t", 0): 0}, max_wait_ms=15_000), FETCH_BY_NAME)
        await eventually(lambda: kit.broker._dispatcher._parked)
        assert not copies(LONG)
        assert fetched(await waiting)["t", 0].error_code == 0

    run(story)


# Requests that wait for what they have changed


def test_a_creation_is_answered_with_the_name_that_was_sent() -> None:
    """Clients look for it: librdkafka and the Java client take another name for a broken answer."""

    async def story(kit: Kit) -> None:
        request, version = create(5_000)
        request.topics = request.topics[:2]
        answer = await kit.call(request, version)
        found = {topic.name: topic.error_code for topic in answer.topics}
        assert found == {"new": 0, LONG: ErrorCode.INVALID_TOPIC_EXCEPTION}

    run(story)


def create(timeout_ms: int) -> tuple[Message, int]:
    odd = [CreatableTopicConfig(name=LONG, value="1")]
    wanted = [
        CreatableTopic(name="new", num_partitions=1, replication_factor=1),
        CreatableTopic(name=LONG, num_partitions=1, replication_factor=1),
        CreatableTopic(name="odd", num_partitions=1, replication_factor=1, configs=odd),
        *[CreatableTopic(name=LONG + "!", num_partitions=1, replication_factor=1)] * 2,
    ]
    return CreateTopicsRequest(topics=wanted, timeout_ms=timeout_ms), 7


def enlarge(timeout_ms: int) -> tuple[Message, int]:
    wanted = [CreatePartitionsTopic(name=name, count=2, assignments=None) for name in ("t", LONG, LONG + "!")]
    return CreatePartitionsRequest(topics=[*wanted, wanted[-1]], timeout_ms=timeout_ms), 3


def delete(timeout_ms: int) -> tuple[Message, int]:
    wanted = [DeleteTopicState(name=name) for name in ("t", LONG, LONG + "!", LONG + "!")]
    return DeleteTopicsRequest(topics=wanted, timeout_ms=timeout_ms), 6


def trim(timeout_ms: int) -> tuple[Message, int]:
    partitions = [DeleteRecordsPartition(partition_index=0, offset=0)]
    wanted = [DeleteRecordsTopic(name=name, partitions=partitions) for name in ("t", LONG, LONG + "!")]
    return DeleteRecordsRequest(topics=wanted, timeout_ms=timeout_ms), 2


def elect(timeout_ms: int) -> tuple[Message, int]:
    wanted = [ElectLeadersRequestTopicPartitions(topic=name, partitions=[0]) for name in ("t", LONG, LONG + "!")]
    return ElectLeadersRequest(election_type=0, topic_partitions=wanted, timeout_ms=timeout_ms), 2


@pytest.mark.parametrize("made", [create, enlarge, delete, trim, elect], ids=lambda made: made.__name__)
def test_a_request_that_waits_keeps_no_long_name(
    made: Callable[[int], tuple[Message, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(kit: Kit) -> None:
        await make_unseen(kit, monkeypatch)
        client = await kit.connect()
        waiting = client.send(*made(FOR_EVER_MS))
        await eventually(lambda: any(call.when_gone for call, _ in kit.broker._dispatcher._later.values()))
        await kit.call(
            ElectLeadersRequest(topic_partitions=None, timeout_ms=0), 2
        )  # a controller keeps its last answer
        assert not copies(LONG)
        assert not copies(LONG + "!")
        assert not waiting.done()
        waiting.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
        client.close()
        await eventually(lambda: not kit.broker._dispatcher._later)

    run(story)


# Offsets


def test_a_commit_for_a_name_that_no_topic_can_have_is_refused_and_not_kept() -> None:
    async def story(kit: Kit) -> None:
        await ready(kit)
        await kit.create_topic()
        answer = await kit.call(commit_request(GROUP, {("t", 0): 1, (LONG, 0): 1, (LONG + "!", 0): 1}), COMMIT)
        found = {topic.name: topic.partitions[0].error_code for topic in answer.topics}
        assert found == {"t": 0, cut_name(LONG): UNKNOWN}
        assert not copies(LONG)

    run(story, **ONE)


@pytest.mark.parametrize("version", [4, 7])
def test_the_longest_name_that_is_named_twice_is_refused_in_an_answer(version: int) -> None:
    async def story(kit: Kit) -> None:
        topic = CreatableTopic(name="x" * 32_767, num_partitions=1, replication_factor=1)
        answer = await kit.call(CreateTopicsRequest(topics=[topic, topic], timeout_ms=1_000), version)
        assert [refused.error_code for refused in answer.topics] == [ErrorCode.INVALID_REQUEST]

    run(story)
