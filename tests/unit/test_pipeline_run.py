"""What is known of a run: from Spark's progress, from the journal, from checkpoints; and how it is shown."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.kits.processkit import free_port
from tidelog.cli.main import main
from tidelog.pipeline import needs, starting
from tidelog.pipeline.checkpoints import parse_offset_file, read_checkpoints
from tidelog.pipeline.display import lags_text, run_table, time_text
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.journal import Journal, read_journal
from tidelog.pipeline.lock import locked
from tidelog.pipeline.progress import parse_progress, time_ms, topic_offsets
from tidelog.pipeline.project import create, read_project
from tidelog.pipeline.run import Run, replayed
from tidelog.pipeline.running import first_lines
from tidelog.types import TopicPartition

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
PROGRESS: dict[str, Any] = {
    "name": "spark_catalog.default.minutes",
    "batchId": 3,
    "numInputRows": 500,
    "durationMs": {"addBatch": 100, "triggerExecution": 250},
    "eventTime": {"watermark": "2023-11-14T22:13:10.900Z"},
    "stateOperators": [{"numRowsDroppedByWatermark": 2}, {"numRowsDroppedByWatermark": 1}],
    "sources": [
        {"endOffset": {"orders": {"0": 10, "1": 20}}, "latestOffset": {"orders": {"0": 15, "1": 20}}},
        {"endOffset": {"logOffset": 4}, "latestOffset": None},
    ],
}


def test_progress_of_a_micro_batch() -> None:
    found = parse_progress(PROGRESS)
    assert (found.flow, found.batch, found.rows, found.rows_per_s, found.dropped) == ("minutes", 3, 500, 2000.0, 3)
    assert found.watermark_ms == 1_699_999_990_900
    assert found.lags == {P0: 5, P1: 0}


def test_progress_that_says_little() -> None:
    found = parse_progress({"id": "abc", "numInputRows": 0})
    assert (found.flow, found.rows_per_s, found.watermark_ms, found.lags) == ("abc", 0.0, None, {})


def test_offsets_are_read_from_text_too_and_other_sources_have_none() -> None:
    assert topic_offsets('{"orders": {"1": 7}}') == {P1: 7}
    for other in (None, "null", "no json", {"logOffset": 3}, 5, {"orders": {"x": 1}}, {"orders": {"0": "1"}}):
        assert topic_offsets(other) == {}


def test_no_watermark_yet_is_none() -> None:
    assert time_ms("1970-01-01T00:00:00.000Z") is None
    assert time_ms(None) is None
    assert (time_text(None), time_text(1_699_999_990_900)) == ("-", "2023-11-14 22:13:10")


EVENTS: list[dict[str, Any]] = [
    {"event": "started", "pipeline": "shop", "master": "local[2]", "pid": 1, "at_ms": 5},
    {"event": "message", "text": "Flow spark_catalog.default.minutes is QUEUED."},
    {"event": "message", "text": "Flow spark_catalog.default.minutes is RUNNING."},
    {"event": "progress", "progress": PROGRESS},
    {"event": "progress", "progress": {**PROGRESS, "batchId": 4, "numInputRows": 100}},
    {"event": "something new"},
    {"event": "message", "text": "Flow spark_catalog.default.minutes has COMPLETED."},
    {"event": "message", "text": "Run is COMPLETED."},
    {"event": "ended", "at_ms": 9, "failure": None},
]


def test_a_run_is_what_its_events_say() -> None:
    run = replayed(EVENTS)
    flow = run.flows["minutes"]
    assert (run.state, run.pipeline, run.streams_started, list(run.flows)) == ("COMPLETED", "shop", 1, ["minutes"])
    assert (flow.state, flow.batches, flow.rows, flow.rows_per_s, flow.dropped) == ("COMPLETED", 2, 600, 1200.0, 6)


def test_the_state_of_a_run() -> None:
    assert Run().state == "NEVER RAN"
    assert replayed(EVENTS[:3]).state == "RUNNING"
    assert replayed([*EVENTS[:3], {"event": "ended", "at_ms": 9, "failure": "no topic"}]).state == "FAILED"


def test_a_run_is_shown_with_its_lags_and_watermark() -> None:
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(run_table(replayed(EVENTS)))
    text = console.export_text()
    assert "pipeline shop on local[2]  COMPLETED" in text
    (row,) = [line for line in text.splitlines() if line.lstrip().startswith("minutes")]
    assert row.split() == [
        "minutes", "COMPLETED", "2", "600", "1,200", "6", "5", "orders", "0:5", "1:0", "2023-11-14", "22:13:10",
    ]  # fmt: skip


def test_lags_by_topic() -> None:
    assert lags_text({P1: 2, P0: None, TopicPartition("a", 0): 1}.items()) == "a 0:1  orders 0:? 1:2"
    assert lags_text([]) == "-"


def test_the_journal_gives_back_what_it_took_and_leaves_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "own" / "run.jsonl"
    assert list(read_journal(path)) == []
    journal = Journal(path)
    for event in EVENTS:
        journal.write(event)
    assert list(read_journal(path)) == EVENTS, "it is there before the journal is closed"
    journal.close()
    path.write_text(path.read_text() + '{"event": "progr')
    assert list(read_journal(path)) == EVENTS


OFFSETS = 'v1\n{"batchWatermarkMs":1699999990900,"batchTimestampMs":1}\n{"orders": {"0": 10, "1": 20}}'


def put_checkpoint(directory: Path, batches: int, text: str = OFFSETS) -> None:
    for name in ("offsets", "commits"):
        (directory / name).mkdir(parents=True)
    for batch in range(batches):
        (directory / "offsets" / str(batch)).write_text(text.replace("10", str(10 + batch)))
        (directory / "commits" / str(batch)).write_text("v1\n{}")
        (directory / "commits" / f".{batch}.crc").write_text("")
    (directory / "offsets" / str(batches)).write_text(text.replace("10", "999"))


def test_checkpoints_say_what_is_committed_in_the_newest_version(tmp_path: Path) -> None:
    put_checkpoint(tmp_path / "spark_catalog" / "default" / "minutes" / "minutes" / "0", 9)
    put_checkpoint(tmp_path / "spark_catalog" / "default" / "minutes" / "minutes" / "1", 3)
    put_checkpoint(tmp_path / "dead" / "dead_letters" / "0", 0)
    (found,) = read_checkpoints(tmp_path)
    assert (found.flow, found.batch, found.offsets) == ("minutes", 2, {P0: 12, P1: 20})
    assert found.watermark_ms == 1_699_999_990_900


def test_offset_files_of_other_sources() -> None:
    assert parse_offset_file("f", 0, 'v1\n{"batchWatermarkMs":0}\n{"logOffset":3}').offsets == {}
    assert parse_offset_file("f", 0, 'v1\n{"batchWatermarkMs":0}\n-').watermark_ms is None
    in_text = json.dumps('{"orders": {"0": 4}}')
    assert parse_offset_file("f", 0, f"v1\n{{}}\n{in_text}").offsets == {P0: 4}


def test_a_failure_is_told_without_plans_and_stacks() -> None:
    text = "[TABLE_NOT_FOUND] no such table.\n\nSQLSTATE: 42P01;\n'Project [x]\n+- 'Filter\n\nJVM stacktrace:\n\tat x"
    assert first_lines(text) == "[TABLE_NOT_FOUND] no such table.\nSQLSTATE: 42P01;"


@pytest.mark.parametrize(("pid", "state"), [(None, "RUNNING"), (2**22 + 1, "DIED")], ids=["this process", "nobody"])
def test_status_knows_whether_the_run_still_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pid: int | None, state: str
) -> None:
    pytest.importorskip("yaml")
    directory = create(tmp_path, "shop", "127.0.0.1:1")[0].parent
    journal = Journal(directory / ".tidelog" / "run.jsonl")
    for event in [{**EVENTS[0], "pid": os.getpid() if pid is None else pid}, *EVENTS[1:5]]:
        journal.write(event)
    journal.close()
    monkeypatch.chdir(directory)
    result = CliRunner().invoke(main, ["pipeline", "status", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert (told["pipeline"], told["state"], told["failure"]) == ("shop", state, None)


def _killed_run(tmp_path: Path, bootstrap: str) -> Path:
    """A project whose last run was killed: the journal and a checkpoint are there, and no process."""
    directory = create(tmp_path, "shop", bootstrap)[0].parent
    journal = Journal(directory / ".tidelog" / "run.jsonl")
    for event in [{**EVENTS[0], "pid": 2**22 + 1}, *EVENTS[1:5]]:
        journal.write(event)
    journal.close()
    put_checkpoint(directory / "pipeline-storage" / "_checkpoints" / "minutes" / "minutes" / "0", 3)
    return directory


def test_status_without_brokers_shows_what_the_files_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("yaml")
    monkeypatch.chdir(_killed_run(tmp_path, f"127.0.0.1:{free_port()}"))
    result = CliRunner().invoke(main, ["pipeline", "status", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert told["state"] == "DIED"
    (flow,) = told["flows"]
    assert (flow["flow"], flow["batches"], flow["lag"], flow["lag_by_partition"]) == (
        "minutes",
        3,
        None,
        "orders 0:? 1:?",
    )
    assert "no broker can be reached" in told["lag_unknown"] or "cannot connect" in told["lag_unknown"].lower()
    plain = CliRunner().invoke(main, ["pipeline", "status"])
    assert (plain.exit_code, "minutes" in plain.output, "the lag is not known" in plain.output) == (0, True, True)


# One run at a time


def test_a_second_run_is_refused_and_says_who_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("yaml")
    directory = create(tmp_path, "shop", "127.0.0.1:1")[0].parent
    monkeypatch.chdir(directory)
    monkeypatch.setattr(needs, "check_needs", lambda: None)
    started: list[str] = []

    @contextlib.contextmanager
    def spark(project: Any, master: str, held: list[int]) -> Iterator[None]:
        assert [os.fstat(descriptor).st_ino for descriptor in held] == [path.stat().st_ino for path in project.locks]
        started.append(master)
        raise PipelineError("here Spark would start")
        yield

    monkeypatch.setattr(starting, "spark_connect", spark)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory / ".tidelog" / "run.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"locked\n"
    for command in ("run", "dry-run"):
        refused = CliRunner().invoke(main, ["pipeline", command])
        assert refused.exit_code == 1
        assert f"pipeline shop is run by process {holder.pid}" in refused.stderr
    assert not started
    holder.kill()
    holder.wait()
    for pipe in (holder.stdin, holder.stdout):
        pipe.close()
    away = CliRunner().invoke(main, ["pipeline", "run"])
    assert "no broker answers at 127.0.0.1:1" in away.stderr
    for _ in range(2):
        after = CliRunner().invoke(main, ["pipeline", "dry-run"])
        assert "here Spark would start" in after.stderr, "a run that was killed, or failed, holds no lock"


HOLD = """
import sys
from pathlib import Path
from tidelog.pipeline.lock import locked
with locked(Path(sys.argv[1]), "shop"):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_copies_of_a_project_have_one_lock_for_their_checkpoints(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    spec = create(tmp_path, "shop", "127.0.0.1:1")[0]
    shutil.copytree(spec.parent, tmp_path / "copy")
    project, copy = read_project(spec), read_project(tmp_path / "copy" / spec.name)
    assert project.checkpoints == copy.checkpoints
    with locked(project.lock, "shop"), pytest.raises(PipelineError, match=f"shop is run by process {os.getpid()}, "):
        locked(copy.lock, "shop", 0).__enter__()
    assert len({*project.locks, *copy.locks}) == 3, "the catalog and the journal are each project's own"
    elsewhere = copy._replace(storage="s3://bucket/shop")
    assert elsewhere.locks == [elsewhere.lock] == [tmp_path / "copy" / ".tidelog" / "run.lock"]


def test_a_lock_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match=r"the lock .*/file/lock cannot be opened"):
        locked(tmp_path / "file" / "lock", "shop").__enter__()


DRIVER = """
import subprocess
import sys
from pathlib import Path
from tidelog.pipeline.lock import locked
with locked(Path(sys.argv[1]), "shop") as held:
    driver = [sys.executable, "-c", "import sys; print('locked', flush=True); sys.stdin.readline()"]
    subprocess.run(driver, pass_fds=[held])
"""


def test_a_run_that_was_killed_is_over_when_its_driver_is(tmp_path: Path) -> None:
    """The driver, which has the descriptor, may still write checkpoints."""
    run = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert run.stdin is not None
    assert run.stdout is not None
    assert run.stdout.readline() == b"locked\n"
    with pytest.raises(PipelineError, match=f"pipeline shop is run by process {run.pid}"):
        locked(tmp_path / "lock", "shop").__enter__()
    run.kill()
    run.wait()
    with pytest.raises(
        PipelineError, match=f"by process {run.pid}, which is gone, and Spark, which it started, is not"
    ):
        locked(tmp_path / "lock", "shop", 0).__enter__()
    run.stdin.close()  # so the driver ends, as Spark's does
    with locked(tmp_path / "lock", "shop"):
        assert run.stdout.read() == b"", "the driver is gone"
    run.stdout.close()


def test_the_driver_gets_the_descriptors_of_the_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the scripts of Spark that start Java."""
    pytest.importorskip("pyspark")
    pytest.importorskip("yaml")
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\nreadlink /proc/$$/fd/* >> {tmp_path}/open\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(java.parent.parent))
    project = read_project(create(tmp_path, "shop", "127.0.0.1:1")[0])
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(locked(path, "shop")) for path in project.locks]
        with pytest.raises(PipelineError, match="Spark did not start"):
            starting.spark_connect(project, "local[1]", held).__enter__()
    assert {str(path) for path in project.locks} <= set((tmp_path / "open").read_text().splitlines())
