"""ApiVersions, InitProducerId, DescribeLogDirs; and what no API can be asked."""

from __future__ import annotations

import asyncio
import struct

import pytest

from tests.kits.brokerkit import Kit, run
from tidelog.broker.apis import SERVED
from tidelog.broker.producer_ids import BLOCK_SIZE, ProducerIds
from tidelog.coordination.memory import MemoryCoordination
from tidelog.errors import ErrorCode, StorageError
from tidelog.lab.broker import eventually
from tidelog.lab.world import World
from tidelog.net.calling import ConnectionClosedError
from tidelog.wire.messages.headers import ApiVersionsRequest
from tidelog.wire.messages.topics import DescribableLogDirTopic, DescribeLogDirsRequest
from tidelog.wire.messages.transactions import InitProducerIdRequest

# ApiVersions


@pytest.mark.parametrize("version", range(5))
def test_api_versions_list_what_is_served(version: int) -> None:
    async def story(kit: Kit) -> None:
        request = ApiVersionsRequest(client_software_name="kit", client_software_version="1.0")
        answer = await kit.call(request, version)
        assert answer.error_code == 0
        listed = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
        expected = {key: (one.versions.first, one.versions.last) for key, one in SERVED.items()}
        assert listed == {**expected, 0: (0, 13)}

    run(story)


@pytest.mark.parametrize(("name", "version"), [("", "1"), ("a", ""), ("a b", "1"), ("-a", "1"), ("a", "1-")])
def test_software_names(name: str, version: str) -> None:
    async def story(kit: Kit) -> None:
        request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
        for api_version in (3, 4):
            assert (await kit.call(request, api_version)).error_code == ErrorCode.INVALID_REQUEST
        assert (await kit.call(request, 2)).error_code == 0

    run(story)


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_an_unknown_version_is_answered_in_version_0(version: int) -> None:
    async def story(kit: Kit) -> None:
        reader, writer = await asyncio.open_connection("b1", kit.port)
        for _ in range(2):  # the connection stays usable
            frame = struct.pack(">hhi", 18, version, 7) + struct.pack(">h", 3) + b"kit" + b"\x00" + b"?" * 20
            writer.write(struct.pack(">i", len(frame)) + frame)
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            answer = await reader.readexactly(size)
            correlation_id, code, count = struct.unpack_from(">ihi", answer)
            assert (correlation_id, code, count) == (7, ErrorCode.UNSUPPORTED_VERSION, len(SERVED))
            assert size == 4 + 2 + 4 + 6 * count
        writer.close()

    run(story)


@pytest.mark.parametrize(("key", "version"), [(0, 2), (0, 14), (1, 3), (3, 14), (1000, 0), (-1, 0), (9, 0)])
def test_what_is_not_served_ends_the_connection(key: int, version: int) -> None:
    async def story(kit: Kit) -> None:
        reader, writer = await asyncio.open_connection("b1", kit.port)
        frame = struct.pack(">hhih", key, version, 7, -1) + b"\x00" * 20
        writer.write(struct.pack(">i", len(frame)) + frame)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(4)
        writer.close()
        await kit.create_topic()  # others are not disturbed

    run(story)


def test_a_handler_that_fails_ends_its_connection_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        other = await kit.connect()
        monkeypatch.setattr(kit.broker.producer_ids, "next", None)
        with pytest.raises(ConnectionClosedError):
            await kit.call(InitProducerIdRequest(transactional_id=None), 4)
        request = ApiVersionsRequest(client_software_name="kit", client_software_version="1.0")
        assert (await other.call(request, 4)).error_code == 0

    run(story)


# InitProducerId


@pytest.mark.parametrize("version", range(6))
def test_producer_ids_are_new_each_time(version: int) -> None:
    async def story(kit: Kit) -> None:
        seen = []
        for _ in range(3):
            answer = await kit.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), version)
            assert (answer.error_code, answer.producer_epoch) == (0, 0)
            seen.append(answer.producer_id)
        if version >= 3:
            bumped = await kit.call(
                InitProducerIdRequest(transactional_id=None, producer_id=seen[0], producer_epoch=0), version
            )
            assert (bumped.error_code, bumped.producer_epoch) == (0, 0)
            seen.append(bumped.producer_id)
        assert len(set(seen)) == len(seen)

    run(story)


def test_producer_ids_of_several_brokers_never_meet() -> None:
    with World(3) as world:
        chance = world.chance_for("delays")
        store = MemoryCoordination(world.host("store").clock, delay_s=lambda: chance.random() / 1e3)

        async def main() -> list[int]:
            found: list[int] = []

            async def take(number: int) -> None:
                session = await store.connect(10_000)
                for _ in range(2):  # a restart takes a new block
                    ids = ProducerIds(number, lambda: session)
                    found.extend(await asyncio.gather(*(ids.next() for _ in range(BLOCK_SIZE + 10))))

            session = await store.connect(10_000)
            await session.ensure("/latest_producer_id_block")
            await asyncio.gather(*(take(number) for number in range(4)))
            return found

        found = world.run(main())
    assert len(found) == len(set(found)) == 4 * 2 * (BLOCK_SIZE + 10)


def test_producer_ids_survive_restarts_and_lost_sessions() -> None:
    async def story(kit: Kit) -> None:
        seen = []
        for step in range(4):
            answer = await kit.call(InitProducerIdRequest(transactional_id=None), 4)
            assert answer.error_code == 0
            seen.append(answer.producer_id)
            if step == 0:
                await kit.restart()
            elif step == 1:
                kit.kill()
                await kit.start()
            elif step == 2:
                kit.expire_session()
                await eventually(lambda: kit.broker.is_current and kit.broker.epoch > 0)
        assert len(set(seen)) == len(seen)

    run(story)


def test_without_the_store_the_client_may_try_again() -> None:
    async def story(kit: Kit) -> None:
        kit.store.suspend()
        answer = await kit.call(InitProducerIdRequest(transactional_id=None), 4)
        code = ErrorCode(answer.error_code)
        assert code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert code.retriable
        kit.store.resume()
        assert (await kit.call(InitProducerIdRequest(transactional_id=None), 4)).error_code == 0

    run(story)


def test_transactions_are_refused() -> None:
    async def story(kit: Kit) -> None:
        answer = await kit.call(InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1000), 4)
        assert (answer.error_code, answer.producer_epoch) == (ErrorCode.UNSUPPORTED_VERSION, -1)
        empty = await kit.call(InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1000), 4)
        assert (empty.error_code, empty.producer_epoch) == (ErrorCode.INVALID_REQUEST, -1)

    run(story)


# DescribeLogDirs


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_describe_log_dirs(version: int) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 2)
        await kit.create_topic("other")
        await kit.produce()
        answer = await kit.call(DescribeLogDirsRequest(topics=None), version)
        first, second = answer.results
        assert [one.error_code for one in answer.results] == [0, 0]
        found = {
            (topic.name, one.partition_index): one.partition_size
            for result in (first, second)
            for topic in result.topics
            for one in topic.partitions
        }
        assert found == {("t", 0): kit.partition().log.size_bytes, ("t", 1): 0, ("other", 0): 0}
        assert (first.total_bytes > 0) is (version >= 4)
        wanted = [DescribableLogDirTopic(topic="t", partitions=[1])]
        some = await kit.call(DescribeLogDirsRequest(topics=wanted), version)
        names = [
            (topic.name, one.partition_index) for r in some.results for topic in r.topics for one in topic.partitions
        ]
        assert names == [("t", 1)]

    run(story, log_dirs="/data/a,/data/b")


def test_log_dirs_that_are_offline_are_listed() -> None:
    async def before(kit: Kit) -> None:
        kit.host.disk.fail_next("sync", count=None, under="/data/a")

    async def story(kit: Kit) -> None:
        await kit.create_topic()
        answer = await kit.call(DescribeLogDirsRequest(topics=None), 4)
        assert {one.log_dir: one.error_code for one in answer.results} == {
            "/data/a": ErrorCode.KAFKA_STORAGE_ERROR,
            "/data/b": 0,
        }
        kit.host.disk.fail_next("write", count=None, under="/data/b")
        await kit.produce()
        answer = await kit.call(DescribeLogDirsRequest(topics=None), 4)
        assert {one.error_code for one in answer.results} == {ErrorCode.KAFKA_STORAGE_ERROR}

    run(story, before=before, log_dirs="/data/a,/data/b")


def test_a_volume_that_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(kit: Kit) -> None:
        def gone(path: str) -> int:
            raise StorageError(f"{path} is gone")

        monkeypatch.setattr(kit.host.disk, "total_bytes", gone)
        answer = await kit.call(DescribeLogDirsRequest(topics=None), 4)
        assert [one.error_code for one in answer.results] == [ErrorCode.KAFKA_STORAGE_ERROR]

    run(story)
