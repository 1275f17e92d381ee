"""Records that are refused one by one: an answer names only so many of them, and many of them in slices."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tests.kits.brokerkit import PRODUCE_BY_NAME, Kit, produce_request, run
from tidelog.errors import ErrorCode, RecordError
from tidelog.records import validate
from tidelog.records.build import build_batch
from tidelog.records.header import Codec
from tidelog.types import Buffer
from tidelog.wire.messages.produce import PartitionProduceResponse, ProduceResponse

MOST = 10_000
AT_ONCE = 500
"""Messages of single records that may be made in one turn of the loop."""
ON_LOOP, OFF_LOOP = 6_000, 60_000
"""Records of a batch that the loop checks, and of one that decompresses to too much for it."""


def keyless(count: int) -> memoryview:
    return build_batch([(0, None, None)] * count, codec=Codec.ZSTD)


def answers_of(response: ProduceResponse) -> list[PartitionProduceResponse]:
    return [partition for topic in response.responses for partition in topic.partition_responses]


async def produced(kit: Kit, batches: Sequence[Buffer], acks: int = -1) -> list[PartitionProduceResponse]:
    await kit.create_topic("t", len(batches), cleanup_policy="compact")
    request = produce_request({("t", index): data for index, data in enumerate(batches)}, acks=acks)
    return answers_of(await kit.call(request, PRODUCE_BY_NAME))


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize(("count", "named"), [(ON_LOOP, [6_000, 4_000, 0]), (OFF_LOOP, [10_000, 0, 0])])
def test_all_batches_of_a_request_together_name_only_so_many_records(count: int, named: list[int], acks: int) -> None:
    async def story(kit: Kit) -> None:
        answers = await produced(kit, [keyless(count)] * 3, acks)
        assert [len(answer.record_errors) for answer in answers] == named
        assert [error.batch_index for error in answers[0].record_errors] == list(range(named[0]))
        for answer in answers:
            assert answer.error_code == ErrorCode.INVALID_RECORD
            assert answer.error_message == f"{count} of {count} records have no key; a compacted topic needs one"

    run(story)


def test_a_batch_that_is_taken_beside_many_refused_records_is_written() -> None:
    async def story(kit: Kit) -> None:
        good = build_batch([(0, b"k", b"v")])
        answers = await produced(kit, [keyless(ON_LOOP), good])
        assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_RECORD, ErrorCode.NONE]
        assert kit.partition("t", 1).log.log_end_offset == 1

    run(story)


def test_requests_that_are_sent_ahead_share_what_is_named() -> None:
    """With as many as a connection may have under way, each naming all its records, one client could take gigabytes."""
    ahead = 5

    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1, cleanup_policy="compact")
        connection = await kit.connect()
        data = keyless(MOST)
        sent = [
            connection.send(produce_request({("t", 0): data}), PRODUCE_BY_NAME, timeout_ms=20_000) for _ in range(ahead)
        ]
        named = [len(answers_of(await answer)[0].record_errors) for answer in sent]
        assert all(named)
        assert sum(named) <= sum(MOST // number for number in range(1, ahead + 1))

    run(story)


@pytest.mark.parametrize("count", [ON_LOOP, OFF_LOOP])
def test_many_records_are_named_in_slices(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Counter[int] = Counter()
    """How many messages of single records were made, by step of the loop."""

    def counted(index: int, message: str) -> RecordError:
        loop: Any = asyncio.get_running_loop()
        made[loop.steps] += 1
        return RecordError(index, message)

    async def story(kit: Kit) -> None:
        monkeypatch.setattr(validate, "RecordError", counted)
        answers = await produced(kit, [keyless(count)])
        assert made.total() == len(answers[0].record_errors) == min(count, MOST)
        assert max(made.values()) <= AT_ONCE

    run(story)
