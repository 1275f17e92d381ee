"""`tidelog pipeline status`: every flow that is known, the state always, and sentences for what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.kits.fake_admin import served_broker
from tests.kits.processkit import free_port
from tests.unit.test_pipeline_run import EVENTS, OFFSETS, put_checkpoint
from tidelog.cli.main import main
from tidelog.pipeline.journal import Journal
from tidelog.pipeline.project import create

pytest.importorskip("yaml")

NOBODY = 2**22 + 1
"""No process has this id."""


class Shop:
    """A project whose last run was killed."""

    def __init__(self, parent: Path, bootstrap: str) -> None:
        self.directory = create(parent, "shop", bootstrap)[0].parent
        self.checkpoints = self.directory / "pipeline-storage" / "_checkpoints"

    def journal(self, events: list[dict[str, Any]]) -> None:
        journal = Journal(self.directory / ".tidelog" / "run.jsonl")
        for event in events:
            journal.write(event)
        journal.close()

    def checkpoint(self, flow: str, batches: int) -> Path:
        """Where the offsets are."""
        put_checkpoint(self.checkpoints / flow / flow / "0", batches)
        return self.checkpoints / flow / flow / "0" / "offsets"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    made = Shop(tmp_path, f"127.0.0.1:{free_port()}")
    monkeypatch.chdir(made.directory)
    return made


def _status(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["pipeline", "status", *arguments])
    assert (result.exit_code, result.exception) == (0, None), result.output
    return result.output


def _told() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_status("--json"))
    return found


DIED = [{**EVENTS[0], "pid": NOBODY}]
QUEUED = {"event": "message", "text": "Flow spark_catalog.default.dead_letters is QUEUED."}


def test_the_state_is_shown_before_any_flow_has_run(shop: Shop) -> None:
    assert _status() == "pipeline shop  NEVER RAN\nno flow has run yet\n"
    shop.journal(DIED)
    assert _status() == "pipeline shop  DIED\nno flow has run yet\n"
    shop.journal([*DIED, {"event": "ended", "at_ms": 9, "failure": "no such table"}])
    assert _status() == "pipeline shop  FAILED\nno flow has run yet\nno such table\n"


def test_flows_are_those_of_the_checkpoints_and_of_the_journal(shop: Shop) -> None:
    """One has a checkpoint of a former run only, one died in its first micro-batch, and one has both."""
    shop.journal([*DIED, *EVENTS[1:5], QUEUED])
    shop.checkpoint("former", 2)
    shop.checkpoint("minutes", 3)
    rows = {row["flow"]: row for row in _told()["flows"]}
    assert list(rows) == ["former", "minutes", "dead_letters"]
    assert [(row["state"], row["batches"], row["rows_of_last_run"]) for row in rows.values()] == [
        (None, 2, 0),
        ("RUNNING", 3, 600),
        ("QUEUED", 0, 0),
    ]
    output = _status()
    assert "pipeline shop  DIED" in output
    assert all(name in output for name in rows)


def test_a_flow_without_a_checkpoint_that_can_be_seen_is_where_its_journal_says(tmp_path: Path) -> None:
    """As if the checkpoints were in an object store."""
    with served_broker() as broker:
        broker.add_topic("orders", 2)
        shop = Shop(tmp_path, broker.bootstrap)
        shop.journal([*DIED, *EVENTS[1:5]])
        (row,) = json.loads(_status("--json", "--spec", str(shop.directory / "spark-pipeline.yml")))["flows"]
    assert (row["flow"], row["batches"], row["lag_by_partition"]) == ("minutes", 5, "orders 0:-10 1:-20")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "is missing, though its micro-batch is committed"),
        ("", "is damaged: it ends before the offsets"),
        ("v1\n", "is damaged: it ends before the offsets"),
        (OFFSETS[: OFFSETS.index("batchTimestamp")], "is damaged: it ends before the offsets"),
        (OFFSETS[:-9], 'is damaged: \'{"orders": {"0": 10, \' is not JSON'),
        (OFFSETS.replace("{", "[", 1).replace("}", "]", 1), "is not JSON"),
        ("v1\n5\n{}", "is damaged: its second line is not an object"),
    ],
)
def test_offsets_that_cannot_be_read_are_told_for_their_flow(shop: Shop, text: str | None, problem: str) -> None:
    shop.journal([*DIED, *EVENTS[1:5]])
    shop.checkpoint("well", 2)
    file = shop.checkpoint("minutes", 3) / "2"
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    told = _told()
    (sentence,) = told["problems"]
    assert sentence.startswith(f"flow minutes: {file} ")
    assert problem in sentence
    assert {row["flow"]: (row["batches"], row["lag_by_partition"]) for row in told["flows"]} == {
        "minutes": (3, "-"),
        "well": (2, "orders 0:? 1:?"),
    }
    assert sentence in _status()


def test_offsets_that_are_not_text_and_commits_that_are_a_file(shop: Shop) -> None:
    (shop.checkpoint("minutes", 3) / "2").write_bytes(b"\xff\xff\xff")
    (shop.checkpoints / "odd" / "odd" / "0").mkdir(parents=True)
    (shop.checkpoints / "odd" / "odd" / "0" / "commits").write_text("")
    (shop.directory / ".tidelog").mkdir()
    (shop.directory / ".tidelog" / "run.jsonl").write_bytes(b"\xff\n")
    told = _told()
    assert [row["flow"] for row in told["flows"]] == ["minutes"]
    assert "is damaged: 'utf-8' codec" in told["problems"][0]


def test_servers_that_are_no_address_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(tmp_path, "nowhere:port")
    monkeypatch.chdir(shop.directory)
    shop.checkpoint("minutes", 3)
    told = _told()
    assert [row["flow"] for row in told["flows"]] == ["minutes"]
    assert "the lag is not known: tidelog.bootstrap.servers in " in told["lag_unknown"]
    assert told["lag_unknown"].endswith("spark-pipeline.yml: 'nowhere:port' is not HOST:PORT")
    assert told["lag_unknown"] in _status()
