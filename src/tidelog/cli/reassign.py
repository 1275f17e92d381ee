"""`tidelog reassign`: replicas moved to other brokers, seen before it is done, watched, and called off."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.cluster import bootstrap_option, given_timeout_s, on_cluster, timeout_option
from tidelog.cli.output import json_option, print_rows
from tidelog.cli.replica_plan import Plan, with_replicas
from tidelog.cli.waiting import Ends
from tidelog.types import BrokerId, TopicPartition

if TYPE_CHECKING:
    from tidelog.client.addresses import Address
    from tidelog.client.cluster import Cluster
    from tidelog.client.errors import BrokerError

_FORMAT = '{"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2, 3]}]}'
_WAIT_S = 300.0


def _broker_ids(ctx: click.Context, parameter: click.Parameter, text: str | None) -> tuple[BrokerId, ...] | None:
    if text is None:
        return None
    ids = text.split(",")
    if not all(one.strip().isdecimal() for one in ids) or len({int(one) for one in ids}) < len(ids):
        raise click.BadParameter(f"{text!r} is not a list of different broker ids, such as 1,2,3")
    return tuple(int(one) for one in ids)


@click.command("reassign")
@click.option("--topic", help="All partitions of this topic, or those named with --partition.")
@click.option("--partition", "numbers", multiple=True, type=click.IntRange(min=0), help="May be given again.")
@click.option("--replicas", metavar="ID,ID,...", callback=_broker_ids, help="Where to; the first is the preferred one.")
@click.option(
    "--replication-factor",
    "factor",
    type=click.IntRange(min=1),
    help="So many replicas, on brokers that this chooses; for --topic, or --all.",
)
@click.option("--all", "of_all", is_flag=True, help="With --replication-factor: all topics, internal ones too.")
@click.option(
    "--file", type=click.Path(exists=True, dir_okay=False), help=f"A plan as Kafka's tools have it: {_FORMAT}"
)
@click.option("--execute", is_flag=True, help="Do it; without this the plan is only shown.")
@click.option("--wait", is_flag=True, help="With --execute: return when the replicas have moved.")
@click.option("--list", "listing", is_flag=True, help="Show what is being moved.")
@click.option("--cancel", is_flag=True, help="Call off what is being moved of --topic.")
@json_option
@timeout_option("Give up after so long. By default each call has 60 s, and --wait 300 s.")
@bootstrap_option
def command(
    topic: str | None,
    numbers: tuple[int, ...],
    replicas: tuple[BrokerId, ...] | None,
    factor: int | None,
    of_all: bool,
    file: str | None,
    execute: bool,
    wait: bool,
    listing: bool,
    cancel: bool,
    as_json: bool,
    bootstrap: list[Address],
) -> None:
    """Move partitions to other brokers, or change how many replicas they have.

    \b
    Examples:
      tidelog reassign --topic orders --replicas 1,2,3
      tidelog reassign --replication-factor 3 --all --execute --wait
    """
    if [listing, cancel, replicas is not None, factor is not None, file is not None].count(True) != 1:
        raise click.UsageError("pass one of --replicas, --replication-factor, --file, --list and --cancel")
    if factor is None and of_all:
        raise click.UsageError("--all is for --replication-factor")
    if factor is not None and (topic is None) != of_all:
        raise click.UsageError("--replication-factor needs --topic or --all")
    if (replicas is not None or cancel) and topic is None:
        raise click.UsageError("name the partitions with --topic")
    if (numbers and topic is None) or (topic is not None and file is not None):
        raise click.UsageError("--partition needs --topic, and --file names topics and partitions itself")
    if (wait and not execute) or (execute and (listing or cancel)):
        raise click.UsageError("--execute is for plans, not for --list and --cancel, and --wait is for --execute")
    if listing:
        _list(topic, numbers, as_json, bootstrap)
    elif cancel:
        assert topic is not None
        _cancel(topic, numbers, as_json, bootstrap)
    else:
        read = None if file is None else read_plan(file)

        async def planned(cluster: Cluster) -> Plan:
            if read is not None:
                return read
            if factor is not None:
                return await _with_factor(cluster, topic, numbers, factor)
            assert topic is not None
            assert replicas is not None
            return dict.fromkeys(await _partitions(cluster, topic, numbers), replicas)

        _move(planned, execute, wait, as_json, bootstrap)


# The plan


def read_plan(file: str) -> Plan:
    """What a file in the format of kafka-reassign-partitions says; ClickException with what is wrong with it."""
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
    except ValueError as failure:
        raise click.ClickException(f"{file} is not JSON: {failure}") from failure
    if not isinstance(content, dict) or not isinstance(content.get("partitions"), list):
        raise click.ClickException(f"{file} is not a plan, which is {_FORMAT}")
    if content.get("version", 1) != 1:
        raise click.ClickException(f"{file} has version {content['version']}, and only 1 is known")
    plan: Plan = {}
    for number, entry in enumerate(content["partitions"]):
        problem = _problem(entry)
        if problem is None:
            partition = TopicPartition(entry["topic"], entry["partition"])
            problem = f"{partition} stands there before" if partition in plan else None
        if problem is not None:
            raise click.ClickException(f"{file}: partitions[{number}]: {problem}")
        plan[partition] = tuple(entry["replicas"])
    if not plan:
        raise click.ClickException(f"{file} names no partition")
    return plan


def _problem(entry: Any) -> str | None:
    if not isinstance(entry, dict):
        return "not an object"
    if not isinstance(entry.get("topic"), str):
        return "topic is not a string"
    if type(entry.get("partition")) is not int or entry["partition"] < 0:
        return "partition is not a number"
    replicas = entry.get("replicas")
    if not isinstance(replicas, list) or not replicas or any(type(one) is not int or one < 0 for one in replicas):
        return "replicas are not a list of broker ids"
    if len(set(replicas)) < len(replicas):
        return "replicas name a broker more than once"
    if any(place != "any" for place in entry.get("log_dirs") or ()):
        return 'log_dirs other than "any" cannot be chosen'
    return None


async def _with_factor(cluster: Cluster, topic: str | None, numbers: tuple[int, ...], factor: int) -> Plan:
    topics = await cluster.all_topics()
    if topic is None:
        partitions = [TopicPartition(name, number) for name, known in topics.items() for number in known.partitions]
    else:
        partitions = await _partitions(cluster, topic, numbers)
    known = {partition: cluster.metadata.partition(partition) for partition in partitions}
    current = {partition: found.replicas for partition, found in known.items() if found is not None}
    try:
        return with_replicas(current, factor, list(cluster.metadata.brokers))
    except ValueError as failure:
        raise click.ClickException(str(failure)) from failure


async def _partitions(cluster: Cluster, topic: str, numbers: Iterable[int]) -> list[TopicPartition]:
    from tidelog.client.leadership import partitions_of

    return await partitions_of(cluster, topic, numbers)


# What it does


def _move(
    planned: Callable[[Cluster], Awaitable[Plan]],
    execute: bool,
    wait: bool,
    as_json: bool,
    bootstrap: list[Address],
) -> None:
    """Show the plan; carry it out if told so, and wait for its end if told so."""
    from tidelog.client.leadership import alter_reassignments, wait_until_reassigned

    async def work(cluster: Cluster) -> bool:
        plan = await planned(cluster)
        rows = await _plan_rows(cluster, plan)
        results: Mapping[TopicPartition, BrokerError | None] = {}
        if execute and plan:
            results = await alter_reassignments(cluster, plan)
            for partition, row in rows.items():
                row["result"] = "begun" if results[partition] is None else str(results[partition])
        print_rows(rows.values(), as_json=as_json, empty="all partitions have these replicas already")
        begun = {partition: plan[partition] for partition, failure in results.items() if failure is None}
        if wait and begun:
            timeout_s = given_timeout_s() or _WAIT_S
            await wait_until_reassigned(cluster, begun, timeout_ms=timeout_s * 1000)
            click.echo(f"{len(begun)} partitions reassigned", err=True)
        return len(begun) == len(results)

    is_done = on_cluster(bootstrap, work, Ends.BY_ITSELF if wait else Ends.AS_A_WHOLE)
    if not execute:
        click.echo("this is the plan, nothing was changed; --execute carries it out", err=True)
    if not is_done:
        sys.exit(1)


async def _plan_rows(cluster: Cluster, plan: Plan) -> dict[TopicPartition, dict[str, Any]]:
    """What stands where now, and what would."""
    for name in dict.fromkeys(partition.topic for partition in plan):
        await _partitions(cluster, name, [partition.partition for partition in plan if partition.topic == name])
    rows: dict[TopicPartition, dict[str, Any]] = {}
    for partition, target in sorted(plan.items()):
        known = cluster.metadata.partition(partition)
        rows[partition] = {
            "topic": partition.topic,
            "partition": partition.partition,
            "current": [] if known is None else list(known.replicas),
            "target": list(target),
        }
    return rows


def _list(topic: str | None, numbers: tuple[int, ...], as_json: bool, bootstrap: list[Address]) -> None:
    from tidelog.client.leadership import Reassignment, list_reassignments

    async def work(cluster: Cluster) -> dict[TopicPartition, Reassignment]:
        asked = None if topic is None else await _partitions(cluster, topic, numbers)
        return await list_reassignments(cluster, asked)

    rows = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "replicas": list(moving.replicas),
            "adding": list(moving.adding),
            "removing": list(moving.removing),
            "target": list(moving.target),
        }
        for partition, moving in sorted(on_cluster(bootstrap, work).items())
    ]
    print_rows(rows, as_json=as_json, empty="nothing is being reassigned")


def _cancel(topic: str, numbers: tuple[int, ...], as_json: bool, bootstrap: list[Address]) -> None:
    """Of a whole topic, what is under way; of partitions that are named, each must be."""
    from tidelog.client.leadership import alter_reassignments, list_reassignments

    async def work(cluster: Cluster) -> dict[TopicPartition, BrokerError | None]:
        asked = await _partitions(cluster, topic, numbers)
        if not numbers:
            asked = list(await list_reassignments(cluster, asked))
        return await alter_reassignments(cluster, dict.fromkeys(asked)) if asked else {}

    results = on_cluster(bootstrap, work)
    rows = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "result": "cancelled" if failure is None else str(failure),
        }
        for partition, failure in sorted(results.items())
    ]
    print_rows(rows, as_json=as_json, empty=f"nothing of {topic} is being reassigned")
    if any(failure is not None for failure in results.values()):
        sys.exit(1)
