"""docs/PIPELINES.md: what it tells the reader to run is run here, in its order, and its picture is of today."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.kits.sparkclusterkit import MarkedProcess, spark_cluster, wait_for_spark
from tests.kits.sparkkit import Topics, rows_of
from tidelog.types import TopicPartition
from tools import watermarks

_PAGE = Path(__file__).parents[2] / "docs" / "PIPELINES.md"
_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_JOB = "# per_minute.py\n"
_COMMAND_S = 60
_MINUTES = [f"2023-11-14 22:{minute}:00" for minute in range(14, 31)]
_OVER = _MINUTES[:14]


@pytest.fixture
def final_windows(spark: Any) -> Iterator[None]:
    """A query that has seen all goes on until its watermark has closed what it can, as Spark does unless told."""
    setting = "spark.sql.streaming.noDataMicroBatches.enabled"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "true")
    yield
    spark.conf.set(setting, before)


def _run_command(line: str, servers: str) -> str:
    command = [sys.executable, "-m", *line.split()]
    environment = {**os.environ, "TIDELOG_BOOTSTRAP": servers}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return done.stdout


def _follow_the_page(servers: str, directory: Path) -> dict[str, str]:
    """What its commands printed. The broker is another, and checkpoints are here; its program is written down."""
    text = _PAGE.read_text(encoding="utf-8").replace("127.0.0.1:9092", servers)
    names: dict[str, Any] = {}
    printed: dict[str, str] = {}
    for kind, block in _BLOCK.findall(text.replace('"checkpoints/', f'"{directory}/')):
        if kind == "sh":
            printed.update({line: _run_command(line, servers) for line in block.splitlines()})
        elif block.startswith(_JOB):
            (directory / "per_minute.py").write_text(block)
        else:
            exec(compile(block, str(_PAGE), "exec"), names)
    return printed


def _submit(program: Path, servers: str, directory: Path) -> None:
    """As the page says, with little memory and no web page."""
    with spark_cluster(directory) as cluster:
        submit = str(Path(sys.executable).parent / "spark-submit")
        little = ["--driver-memory", "512m", "--executor-memory", "512m", "--conf", "spark.ui.enabled=false"]
        shuffles = ["--conf", "spark.sql.shuffle.partitions=4"]
        command = [
            submit,
            "--master",
            cluster.master,
            *shuffles,
            *little,
            str(program),
            servers,
            str(directory / "job"),
        ]
        job = MarkedProcess(command, directory, "submit")
        try:
            wait_for_spark(lambda: job.process.poll() is not None, "the end of the program")
        finally:
            job.kill()
        assert job.process.returncode == 0, job.log[-4000:]
        assert list(directory.glob("work-*/app-*")), "it did not run on the cluster"


@pytest.mark.jvm
@pytest.mark.long
@pytest.mark.minutes
def test_the_page_from_top_to_bottom(
    spark: Any, topics: Topics, batch: Any, tmp_path: Path, final_windows: None
) -> None:
    printed = _follow_the_page(topics.servers, tmp_path)
    partitions = printed["tidelog groups describe orders-per-minute"].splitlines()
    lags = [line.split()[5] for line in partitions if line.split()[:2] == ["orders-per-minute", "orders"]]
    assert lags == ["0", "0", "0"]
    assert [line.split()[:8] for line in partitions if " orders " in line] == [
        line.split()[:8] for line in _PAGE.read_text(encoding="utf-8").splitlines() if " orders  " in line
    ]
    counts = batch(subscribe="per-minute").selectExpr("cast(key as string) key", "cast(value as string) value")
    assert {row.key: json.loads(row.value)["orders"] for row in counts.collect()} == dict.fromkeys(_OVER, 60)
    assert {key.decode() for (key,) in rows_of(batch(subscribe="growing"), "key")} == set(_MINUTES)
    _submit(tmp_path / "per_minute.py", topics.servers, tmp_path)
    assert topics.ends("per-minute") == {0: 2 * len(_OVER)}
    assert topics.lag("job-per-minute") == {TopicPartition("orders", number): 0 for number in range(3)}


@pytest.mark.jvm
def test_the_picture_is_what_spark_does(
    spark: Any, topics: Topics, name: str, stream: Any, tmp_path: Path, final_windows: None
) -> None:
    """The records of the picture, batch by batch: the same windows, the same counts, the same one dropped."""
    topics.create(name, 1)
    noon_s = int(datetime(2024, 1, 1, 12, tzinfo=UTC).timestamp())
    seen: dict[int, int] = {}

    def take(rows: Any, batch_id: int) -> None:
        seen.update({row[0] - noon_s: row[1] for row in rows.collect()})

    frame = stream(subscribe=name, startingOffsets="earliest")
    windows = frame.withWatermark("timestamp", f"{watermarks.DELAY_S} seconds").groupBy(_minutes()).count()
    writer = windows.selectExpr("unix_timestamp(window.start)", "count").writeStream.foreachBatch(take)
    query = writer.outputMode("update").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        for times in watermarks.BATCHES:
            topics.produce(name, 0, [((noon_s + event_s) * 1000, None, b"order") for event_s in times])
            query.processAllAvailable()
    finally:
        query.stop()
    kept = [one.event_s // 60 * 60 for one in watermarks.records() if not one.is_dropped]
    assert seen == Counter(kept) == {0: 3, 60: 2, 120: 3}
    progress = [one for one in query.recentProgress if one["numInputRows"]]
    by = [datetime.fromisoformat(one["eventTime"]["watermark"]).timestamp() - noon_s for one in progress]
    assert by[1:] == watermarks.watermarks()[1:-1]
    assert [one["stateOperators"][0]["numRowsDroppedByWatermark"] for one in progress] == [0, 0, 1]


def _minutes() -> Any:
    from pyspark.sql import functions as f

    return f.window("timestamp", "1 minute")


def test_the_picture_is_of_today() -> None:
    """`python -m tools.watermarks` draws it anew."""
    assert watermarks.TARGET.read_text(encoding="utf-8") == watermarks.svg()
