"""`tidelog pipeline` as a user runs it: a new project, a real broker, Spark, and what is in topics and table."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from examples.demo.results import minute_of, table_rows, topic_values
from tests.kits.processkit import broker_process
from tests.kits.sparkkit import Topics
from tidelog.pipeline.templates import TOPICS

pytest.importorskip("pyspark")
pytest.importorskip("yaml")
pytestmark = [pytest.mark.long, pytest.mark.minutes, pytest.mark.timeout(900)]

ORDERS, DEAD_LETTERS, MINUTES = TOPICS
BASE_MS = 1_700_000_040_000
MINUTE_MS = 60_000
COMMAND_S = 400


class Shop:
    """A project and its command line."""

    def __init__(self, directory: Path, topics: Topics) -> None:
        self.directory = directory / "shop"
        self.topics = topics
        self._parent = directory
        self._orders = 0

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        where = self.directory if self.directory.exists() else self._parent
        command = [sys.executable, "-m", "tidelog", "pipeline", *words]
        return subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=COMMAND_S, check=False)

    def done(self, *words: str) -> str:
        result = self.command(*words)
        assert result.returncode == 0, f"{words}: {result.stdout}{result.stderr}{self.log}"
        return result.stdout

    @property
    def log(self) -> str:
        file = self.directory / ".tidelog" / "spark.log"
        return file.read_text(errors="replace")[-4000:] if file.exists() else ""

    def order(self, partition: int, *times_ms: int) -> None:
        """Orders of 5 cents at these times."""
        values = [
            b'{"order": %d, "ts": %d, "amount_cents": 5}' % (self._orders + n, at) for n, at in enumerate(times_ms)
        ]
        self._orders += len(values)
        self.put(partition, *values)

    def put(self, partition: int, *values: bytes) -> None:
        now_ms = time.time_ns() // 1_000_000
        self.topics.produce(ORDERS, partition, [(now_ms, b"k", value) for value in values])

    def values(self, topic: str) -> list[bytes]:
        return self.topics.run(lambda cluster: topic_values(cluster, topic))

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.done("status", "--json"))
        return found


def test_a_project_from_its_first_file_to_its_second_run(tmp_path: Path) -> None:
    settings = {"offsets_topic_num_partitions": "2", "offsets_topic_replication_factor": "1"}
    (tmp_path / "broker").mkdir()
    with broker_process(tmp_path / "broker", **settings) as broker:
        shop = Shop(tmp_path, Topics(broker))
        for topic in TOPICS:
            shop.topics.create(topic)
        shop.done("init", "shop", "--bootstrap", shop.topics.servers)

        # Three orders in the first minute, one in the third; two records that are none.
        shop.order(0, BASE_MS, BASE_MS + 1, BASE_MS + 2 * MINUTE_MS)
        shop.order(1, BASE_MS + 59_999)
        shop.put(1, b"no order", b'{"order": 1, "ts": "yesterday"}')
        told = shop.done("run", "--master", "local[2]")
        assert "COMPLETED" in told
        assert table_rows(shop.directory / "warehouse" / "minutes") == [], "no minute is over yet"
        assert sorted(shop.values(DEAD_LETTERS)) == [b"no order", b'{"order": 1, "ts": "yesterday"}']

        # Twenty minutes on, the watermark has passed both minutes; what comes for them now is too late.
        shop.order(0, BASE_MS + 22 * MINUTE_MS)
        shop.done("run", "--master", "local[2]")
        expected = [(BASE_MS, 3, 15), (BASE_MS + 2 * MINUTE_MS, 1, 5)]
        assert table_rows(shop.directory / "warehouse" / "minutes") == expected
        assert sorted(minute_of(value) for value in shop.values(MINUTES)) == expected
        flows = check_status(shop.status(), lag=0)
        assert flows["minutes"]["watermark"] == "2023-11-14 22:26:00"
        assert shop.topics.lag("shop-minutes") == shop.topics.lag("shop-dead-letters")
        assert set(shop.topics.lag("shop-minutes").values()) == {0}

        shop.order(1, BASE_MS)
        check_status(shop.status(), lag=1)


def check_status(status: dict[str, Any], *, lag: int) -> dict[str, dict[str, Any]]:
    flows = {flow["flow"]: flow for flow in status["flows"]}
    assert (status["state"], sorted(flows)) == ("COMPLETED", ["dead_letters", "minutes", "minutes_topic"])
    assert [flows[name]["lag"] for name in ("dead_letters", "minutes")] == [lag, lag]
    return flows


def test_a_dry_run_finds_what_is_wrong_and_touches_nothing(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    with broker_process(tmp_path / "broker") as broker:
        shop = Shop(tmp_path, Topics(broker))
        for topic in TOPICS:
            shop.topics.create(topic)
        shop.done("init", "shop", "--bootstrap", shop.topics.servers)
        shop.order(0, BASE_MS)
        assert "the pipeline is valid" in shop.done("dry-run", "--master", "local[1]")
        assert not (shop.directory / "pipeline-storage" / "_checkpoints").exists()
        assert shop.status()["state"] == "NEVER RAN"

        sql = shop.directory / "transformations" / "minutes.sql"
        sql.write_text(sql.read_text().replace("sum(amount_cents)", "sum(no_such_column)"))
        refused = shop.command("dry-run", "--master", "local[1]")
        assert refused.returncode == 1
        assert "no_such_column" in refused.stderr
        assert "Traceback" not in refused.stderr
