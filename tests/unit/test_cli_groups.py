"""`tidelog groups` without a coordinator: what its tables show, and what it refuses before it asks anybody."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tidelog.cli.groups import member_rows, offset_rows
from tidelog.cli.main import main
from tidelog.client.group_lag import lags
from tidelog.client.groups import GroupDescription, GroupMember
from tidelog.types import TopicPartition

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
BUSY = GroupMember("m-1", "client", "/10.0.0.1", None, [P0, P2])
IDLE = GroupMember("m-2", "client", "/10.0.0.2", "static", [])
GROUP = GroupDescription("g", "Stable", "consumer", "range", [BUSY, IDLE], 1)


def test_a_row_per_partition_and_one_for_a_member_without_any() -> None:
    rows = offset_rows(GROUP, lags(GROUP, {P0: 5, P1: 7}, {P0: 5, P2: 9}))
    assert list(rows[0]) == [
        "group", "topic", "partition", "current_offset", "log_end_offset", "lag", "consumer_id", "host", "client_id",
    ]  # fmt: skip
    assert [tuple(row.values())[1:] for row in rows] == [
        ("orders", 0, 5, 5, 0, "m-1", "/10.0.0.1", "client"),
        ("orders", 1, 7, "-", "-", "-", "-", "-"),
        ("orders", 2, "no offset", 9, "-", "m-1", "/10.0.0.1", "client"),
        ("-", "-", "-", "-", "-", "m-2", "/10.0.0.2", "client"),
    ]


def test_a_group_without_members_shows_what_it_has_committed() -> None:
    empty = GROUP._replace(state="Empty", members=[])
    (row,) = offset_rows(empty, lags(empty, {P0: 0}, {P0: 3}))
    assert (row["current_offset"], row["lag"], row["consumer_id"]) == (0, 3, "-")
    assert offset_rows(empty, []) == []


def test_members_with_what_they_hold() -> None:
    busy, idle = member_rows(GROUP)
    assert (busy["partitions"], busy["assignment"], busy["group_instance_id"]) == (2, "orders:0,2", "-")
    assert (idle["partitions"], idle["assignment"], idle["group_instance_id"]) == (0, "-", "static")


REFUSED = {
    "describe": "name groups, or pass --all-groups",
    "describe g --all-groups": "name groups, or pass --all-groups",
    "describe g --members --state": "not both",
    "list --state sleepy": "'sleepy' is none of",
    "list --type modern": "'modern' is none of",
    "delete --yes": "name groups",
    "export": "name one group",
    "export a --group b": "name one group",
    "export a --topic :1": "is not TOPIC",
    "reset-offsets --to-latest --all-topics": "name one group",
    "reset-offsets g --all-topics": "pass one of --to-earliest",
    "reset-offsets g --all-topics --to-latest --shift-by -1": "pass one of --to-earliest",
    "reset-offsets g --to-latest": "name the partitions",
    "reset-offsets g --to-latest --all-topics --topic orders": "name the partitions",
    "reset-offsets g --to-latest --all-topics --execute --dry-run": "not both",
    "reset-offsets g --to-offset -1 --all-topics": "is not in the range",
    "reset-offsets g --to-datetime noon --all-topics": "is no time",
    "reset-offsets g --by-duration 1h --all-topics": "is no duration",
    "reset-offsets g --from-file no-such-file": "does not exist",
}


@pytest.mark.parametrize("command", REFUSED)
def test_what_cannot_be_meant_is_refused(command: str) -> None:
    result = CliRunner().invoke(main, ["groups", *command.split()], env={"TIDELOG_BOOTSTRAP": "127.0.0.1:1"})
    assert result.exit_code == 2, result.output
    assert REFUSED[command] in " ".join(result.stderr.replace("│", " ").split())
