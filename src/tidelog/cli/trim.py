"""`tidelog topics trim`: the oldest records of a topic deleted, seen before it is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tidelog.cli.commands import INT32, OFFSET
from tidelog.cli.completion import topic_names
from tidelog.cli.on_cluster import bootstrap_option, call_timeout_option, on_cluster
from tidelog.cli.output import json_option, print_rows
from tidelog.cli.since import parse_since
from tidelog.types import Offset, TopicPartition

if TYPE_CHECKING:
    from tidelog.client.addresses import Address
    from tidelog.client.cluster import Cluster


class Cut(NamedTuple):
    """Where one log starts now, where it is to start, and where it ends for consumers."""

    start: Offset
    new_start: Offset
    end: Offset


@click.command("trim")
@click.argument("name", shell_complete=topic_names)
@click.option("--partition", "numbers", multiple=True, type=INT32, help="Only this; may be given again.")
@click.option("--before-offset", type=OFFSET, metavar="N", help="Delete what is before this offset.")
@click.option(
    "--before-time", metavar="TIME", help="Delete what is older: 2026-01-31T12:00, ms since 1970, or 7d for a week."
)
@click.option("--all", "everything", is_flag=True, help="Delete all records that are there now; the topic stays.")
@click.option("--execute", is_flag=True, help="Do it; without this the plan is only shown.")
@json_option
@call_timeout_option
@bootstrap_option
def trim(
    name: str,
    numbers: tuple[int, ...],
    before_offset: int | None,
    before_time: str | None,
    everything: bool,
    execute: bool,
    as_json: bool,
    bootstrap: list[Address],
) -> None:
    """Delete the oldest records of a topic.

    The plan is shown first. Offsets stay as they are: the log only starts later. What is deleted does not come back.
    """
    from tidelog.client.admin import Admin
    from tidelog.host.clock import SystemClock

    if (before_offset is not None) + (before_time is not None) + everything != 1:
        raise click.UsageError("pass one of --before-offset, --before-time and --all")
    time_ms = None
    if before_time is not None:
        time_ms = parse_since(before_time, SystemClock().wall_ms(), "--before-time")

    async def work(cluster: Cluster) -> tuple[dict[TopicPartition, Cut], Mapping[TopicPartition, Offset]]:
        cuts = await plan_trim(cluster, name, numbers, before_offset, time_ms)
        wanted = {partition: cut.new_start for partition, cut in cuts.items() if cut.new_start > cut.start}
        done = await Admin(cluster).delete_records(wanted) if execute and wanted else {}
        return cuts, done

    cuts, done = on_cluster(bootstrap, work)
    print_rows([_row(partition, cut) for partition, cut in cuts.items()], as_json=as_json)
    if execute:
        click.echo(f"{name}: {len(done)} of {len(cuts)} partitions start later now", err=True)
    else:
        click.echo("this is the plan, nothing was deleted; --execute carries it out", err=True)


async def plan_trim(
    cluster: Cluster, name: str, numbers: tuple[int, ...], before_offset: Offset | None, before_ms: int | None
) -> dict[TopicPartition, Cut]:
    """Each partition's cut, never beyond its high watermark. Without an offset and a time, all goes."""
    from tidelog.client.leadership import partitions_of
    from tidelog.client.offsets import NO_OFFSET, list_offsets, start_and_end

    partitions = await partitions_of(cluster, name, numbers)
    await cluster.topic(name, led=not numbers)
    bounds = await start_and_end(cluster, partitions)
    wanted = {partition: end if before_offset is None else before_offset for partition, (_, end) in bounds.items()}
    if before_ms is not None:
        found = await list_offsets(cluster, dict.fromkeys(partitions, before_ms))
        # Where no record is that late, all are earlier.
        wanted |= {partition: at.offset for partition, at in found.items() if at.offset != NO_OFFSET}
    cuts = {}
    for partition, (start, end) in bounds.items():
        cuts[partition] = Cut(start, min(max(wanted[partition], start), end), end)
    return cuts


def _row(partition: TopicPartition, cut: Cut) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "log_start_offset": cut.start,
        "new_start_offset": cut.new_start,
        "high_watermark": cut.end,
        "deleted_offsets": cut.new_start - cut.start,
    }
