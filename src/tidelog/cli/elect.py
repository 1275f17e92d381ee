"""`tidelog elect`: leaders chosen anew, as after a restart or when no replica in sync is left."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.commands import INT32
from tidelog.cli.completion import topic_names
from tidelog.cli.on_cluster import bootstrap_option, call_timeout_option, on_cluster
from tidelog.cli.output import json_option, print_rows
from tidelog.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.client.addresses import Address
    from tidelog.client.cluster import Cluster
    from tidelog.client.leadership import ElectionResult
    from tidelog.types import TopicPartition


@click.command("elect")
@click.argument("kind", type=click.Choice(["preferred", "unclean"]), required=False)
@click.option("--unclean", is_flag=True, help="The same as UNCLEAN.")
@click.option(
    "--topic", shell_complete=topic_names, help="All partitions of this topic, or those named with --partition."
)
@click.option("--partition", "numbers", multiple=True, type=INT32, help="May be given again.")
@click.option("--all", "everywhere", is_flag=True, help="All partitions of the cluster.")
@json_option
@call_timeout_option
@bootstrap_option
def command(
    kind: str | None,
    unclean: bool,
    topic: str | None,
    numbers: tuple[int, ...],
    everywhere: bool,
    as_json: bool,
    bootstrap: list[Address],
) -> None:
    """Elect leaders.

    PREFERRED gives partitions back to their first replica, if it is in sync. UNCLEAN gives partitions without a leader
    to a replica that is alive, in sync or not: records that only others have are lost. Of several it takes the one
    whose log goes furthest, as far as the controller knows.
    """
    if unclean == (kind is not None):
        raise click.UsageError("name the kind of election, once: preferred, or unclean")
    kind = kind or "unclean"
    if everywhere == (topic is not None):
        raise click.UsageError("name the partitions: either --topic, or --all")
    if numbers and topic is None:
        raise click.UsageError("--partition needs --topic")
    results = on_cluster(bootstrap, lambda cluster: _elect(cluster, kind, topic, numbers))
    print_rows(
        [_row(partition, *result) for partition, result in sorted(results.items())],
        as_json=as_json,
        empty="no partition needs an election",
    )
    if any(result.failed for result, _ in results.values()):
        sys.exit(1)


async def _elect(
    cluster: Cluster, kind: str, topic: str | None, numbers: tuple[int, ...]
) -> dict[TopicPartition, tuple[ElectionResult, int | None]]:
    """What became of each, with who leads it now."""
    from tidelog.client.leadership import Election, elect_leaders, partitions_of

    asked = None if topic is None else await partitions_of(cluster, topic, numbers)
    results = await elect_leaders(cluster, Election[kind.upper()], asked)
    topics = list(dict.fromkeys(partition.topic for partition in results))
    await cluster.retrying(lambda: cluster.refresh_once(topics), "metadata", topics=None)
    return {partition: (result, cluster.metadata.leader(partition)) for partition, result in results.items()}


def _row(partition: TopicPartition, result: ElectionResult, leader: int | None) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "leader": leader,
        "result": "elected" if result.code is ErrorCode.NONE else result.code.name,
        "message": result.message,
    }
