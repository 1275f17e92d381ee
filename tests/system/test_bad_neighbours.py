"""A good client beside bad ones: whatever they send, it is served within 50 ms, and nothing of it is lost.

TIDELOG_NEIGHBOURS_S is how long random mixes of all bad clients are played; the default is ten minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.kits.bad_clients import COMPACTED, KINDS, VICTIM, WIDE, WIDTH
from tests.kits.processkit import BrokerProcess, broker_process
from tidelog.net.calling import Connection
from tidelog.wire.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

KITS = Path(__file__).parents[1] / "kits"
GOOD = "orders"
SETTINGS = {"auto_create_topics_enable": "true", "offsets_topic_replication_factor": "1"}
"""The good client has a group, and so a coordinator."""
MOST_P99_MS = 50.0
BURSTS_S = 6.0
MIX_S = float(os.environ.get("TIDELOG_NEIGHBOURS_S", "600"))
MIXED_AT_ONCE = 2
FEWEST_RECORDS = 200
MOST_RSS_MB = 700.0
_NICE = ["nice", "-n", "15", sys.executable]
"""It is the broker that is judged, not how this machine shares its cores."""


async def create_topics(port: int) -> None:
    connection = await Connection.open("127.0.0.1", port, client_id="setup")
    compact = [CreatableTopicConfig(name="cleanup.policy", value="compact")]
    topics = [
        CreatableTopic(name=GOOD, num_partitions=1, replication_factor=1),
        CreatableTopic(name=VICTIM, num_partitions=1, replication_factor=1),
        CreatableTopic(name=COMPACTED, num_partitions=1, replication_factor=1, configs=compact),
        CreatableTopic(name=WIDE, num_partitions=WIDTH, replication_factor=1),
    ]
    answer: Any = await connection.call(CreateTopicsRequest(topics=topics, timeout_ms=30_000), 7)
    assert all(topic.error_code == 0 for topic in answer.topics), answer
    connection.close()


def run_beside(broker: BrokerProcess, kinds: list[list[str]], seconds: float, seed: int) -> None:
    """Play the bad clients beside a good one, and look at what became of the good one."""
    good = subprocess.Popen(
        [sys.executable, str(KITS / "good_client.py"), str(broker.port), GOOD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert good.stdout is not None
        assert good.stdout.readline() == "ready\n"
        bad = [
            subprocess.Popen(
                [*_NICE, str(KITS / "bad_clients.py"), str(broker.port), str(seconds), str(seed + at), *names],
                stdout=subprocess.PIPE,
                text=True,
            )
            for at, names in enumerate(kinds)
        ]
        bursts = [process.communicate(timeout=seconds + 120)[0] for process in bad]
        assert all(process.returncode == 0 for process in bad)
        assert all(int(count) > 0 for count in bursts)
        told, _ = good.communicate("", timeout=60)
    finally:
        good.kill()
        good.wait()
    written_ms, read_ms, failures, lost = json.loads(told)
    assert failures == []
    assert lost == [], "acknowledged, and never read"
    assert len(written_ms) >= FEWEST_RECORDS
    assert percentile(written_ms, 0.99) < MOST_P99_MS, f"to write; the slowest took {max(written_ms):.0f} ms"
    assert percentile(read_ms, 0.99) < MOST_P99_MS, f"to write and read; the slowest took {max(read_ms):.0f} ms"
    assert broker.is_alive
    assert broker.rss_mb < MOST_RSS_MB
    assert not broker.lines("Traceback")


def percentile(times_ms: list[float], share: float) -> float:
    return sorted(times_ms)[int(len(times_ms) * share)]


@pytest.mark.long
@pytest.mark.minutes
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_a_good_client_does_not_notice_a_bad_one(kind: str, tmp_path: Path) -> None:
    with broker_process(tmp_path, **SETTINGS) as broker:
        uvloop.run(create_topics(broker.port))
        run_beside(broker, [[kind]], BURSTS_S, seed=1)
        assert broker.stop() == 0


@pytest.mark.long
@pytest.mark.minutes
@pytest.mark.timeout(MIX_S + 400)
def test_a_good_client_does_not_notice_all_kinds_of_bad_ones_together(tmp_path: Path) -> None:
    with broker_process(tmp_path, **SETTINGS) as broker:
        uvloop.run(create_topics(broker.port))
        run_beside(broker, [list(KINDS)] * MIXED_AT_ONCE, MIX_S, seed=7)
        assert broker.stop() == 0
