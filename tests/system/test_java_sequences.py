"""Kafka's Java producer and batches that are refused before its first one is taken (edge case 44).

librdkafka is tried in tests/system/test_librdkafka_sequences.py.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from peers import home
from peers.tools import JavaShell
from tests.kits.brokerkit import Kit, run_here
from tests.system.test_librdkafka_sequences import refuse
from tidelog.errors import ErrorCode

pytestmark = pytest.mark.jvm

RECORDS = 40
_RECORD_BYTES = 10_000
"""Two of them do not fit in a batch (batch.size is 16384), and the producer has five requests under way."""


def _value(number: int) -> bytes:
    return b"%d" % number * (_RECORD_BYTES // len(b"%d" % number))


def _produce(shell: JavaShell, kit: Kit, numbers: range) -> dict[str, Any]:
    records = [
        {"partition": 0, "timestamp": None, "key": None, "value": b64encode(_value(number)).decode(), "headers": []}
        for number in numbers
    ]
    bootstrap = f"127.0.0.1:{kit.broker.ports_bound['PLAINTEXT']}"
    options = {"codec": "none", "acks": "all", "idempotent": True, "linger_ms": 0, "auto_create": False}
    return shell.ask({"op": "produce", "bootstrap": bootstrap, "topic": "t", "records": records, **options})


@pytest.mark.parametrize("version", home.VERSIONS)
@pytest.mark.parametrize("code", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_edge_44_a_refused_first_batch_is_not_taken_for_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, code: ErrorCode
) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        refuse(monkeypatch, chain([code], repeat(ErrorCode.NONE)))
        shell = await asyncio.to_thread(JavaShell, version)
        try:
            answer = await asyncio.to_thread(_produce, shell, kit, range(RECORDS))
        finally:
            await asyncio.to_thread(shell.close)
        assert "error" not in answer, answer
        assert answer["offsets"] == list(range(RECORDS))
        assert await kit.values() == list(map(_value, range(RECORDS)))
        assert kit.partition().log.producers.states[0].epoch == 0, "it was not made to begin another epoch"

    run_here(story, tmp_path)
