"""The client of the `hot` table, against a broker and against its bare server: what it counts is there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from bench import broker_start
from bench.broker_servers import Server, Tidelog
from bench.hot_client import PRODUCE_IDS, Job
from bench.hot_servers import Floor, filled, measure, produce_once
from peers.process import PeerFailedError

CONNECTIONS, MOST = 2, 50


@pytest.fixture
def job() -> Job:
    now_ms = int(time.time() * 1000)
    return Job(0, "hot", now_ms, 100, 10_000, connections=CONNECTIONS, warm_s=0.0, seconds=5.0, most=MOST)


@pytest.fixture(params=[Tidelog, Floor])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    made: Server = request.param(tmp_path / "server")
    with ExitStack() as stack:
        if isinstance(made, Tidelog):
            made.prepare()
            stack.callback(made.stop)
            broker_start.start(made)
        yield made


@pytest.mark.parametrize("batch_bytes", [None, 10_000, 1 << 19])
def test_what_is_produced_is_counted_and_stored(server: Server, job: Job, batch_bytes: int | None) -> None:
    job = replace(job, batch_bytes=batch_bytes)
    result = produce_once(server, job).result
    assert result.requests == CONNECTIONS * MOST
    assert result.moved_bytes == result.requests * len(job.batch.data)
    assert result.all_requests >= CONNECTIONS * (MOST + PRODUCE_IDS)


@pytest.mark.parametrize("fetched", [1, 40])
def test_what_is_fetched_is_what_was_written(server: Server, job: Job, fetched: int) -> None:
    job = replace(job, fetched=fetched, positions=3, in_flight=1)
    with filled(server, job):
        result = measure(server, job).result
    assert result.requests == CONNECTIONS * MOST
    assert result.moved_bytes == result.requests * fetched * 10_000


def test_without_the_records_nothing_is_measured(server: Server, job: Job) -> None:
    job = replace(job, fetched=1, positions=3, in_flight=1)
    with filled(server, job), pytest.raises(PeerFailedError):
        measure(server, replace(job, timestamp_ms=job.timestamp_ms + 1))
