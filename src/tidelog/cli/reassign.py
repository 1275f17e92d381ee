"""`tidelog reassign`: replicas moved to other brokers, seen before it is done, watched, and called off."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.commands import INT32, REPLICATION_FACTOR, number
from tidelog.cli.completion import topic_names
from tidelog.cli.on_cluster import bootstrap_option, given_timeout_s, on_cluster, timeout_option
from tidelog.cli.output import json_option, print_rows
from tidelog.cli.plan_file import FORMAT, as_file, read_plan
from tidelog.cli.replica_plan import Plan, spread, with_replicas
from tidelog.cli.waiting import Ends
from tidelog.types import BrokerId, TopicPartition
from tidelog.wording import counted

if TYPE_CHECKING:
    from tidelog.client.addresses import Address
    from tidelog.client.cluster import Cluster
    from tidelog.client.errors import BrokerError

_WAIT_S = 300.0


def _broker_ids(ctx: click.Context, parameter: click.Parameter, text: str | None) -> tuple[BrokerId, ...] | None:
    if text is None:
        return None
    ids = [number(part) for part in text.split(",")]
    found = tuple(broker for broker in ids if broker is not None)
    if len(set(found)) < len(ids):
        raise click.BadParameter(f"{text!r} is not a list of different broker ids, such as 1,2,3")
    return found


@click.command("reassign")
@click.option(
    "--topic", shell_complete=topic_names, help="All partitions of this topic, or those named with --partition."
)
@click.option("--partition", "numbers", multiple=True, type=INT32, help="May be given again.")
@click.option("--replicas", metavar="ID,ID,...", callback=_broker_ids, help="Where to; the first is the preferred one.")
@click.option(
    "--replication-factor",
    "factor",
    type=REPLICATION_FACTOR,
    help="So many replicas, on brokers that this chooses; for --topic, or --all.",
)
@click.option(
    "--brokers",
    metavar="ID,ID,...",
    callback=_broker_ids,
    help="As many replicas as now, spread over these brokers with few moves; for --topic, or --all.",
)
@click.option("--all", "of_all", is_flag=True, help="All topics, internal ones too.")
@click.option("--file", type=click.Path(exists=True, dir_okay=False), help=f"A plan as Kafka's tools have it: {FORMAT}")
@click.option("--generate", is_flag=True, help="Print the plan as JSON for --file, and what is now to standard error.")
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
    brokers: tuple[BrokerId, ...] | None,
    of_all: bool,
    file: str | None,
    generate: bool,
    execute: bool,
    wait: bool,
    listing: bool,
    cancel: bool,
    as_json: bool,
    bootstrap: list[Address],
) -> None:
    """Move partitions to other brokers, or change how many replicas they have."""
    ways = [listing, cancel, replicas is not None, factor is not None, brokers is not None, file is not None]
    if ways.count(True) != 1:
        raise click.UsageError("pass one of --replicas, --replication-factor, --brokers, --file, --list and --cancel")
    chooses = factor is not None or brokers is not None
    if of_all and not chooses:
        raise click.UsageError("--all is for --replication-factor and --brokers")
    if chooses and (topic is None) != of_all:
        raise click.UsageError("--replication-factor and --brokers need --topic or --all")
    if generate and (execute or as_json or listing or cancel):
        raise click.UsageError("--generate prints a plan; it goes with no --execute, --json, --list and --cancel")
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
            if chooses:
                return await _chosen_plan(cluster, topic, numbers, factor, brokers or ())
            assert topic is not None
            assert replicas is not None
            return dict.fromkeys(await _partitions(cluster, topic, numbers), replicas)

        if generate:
            _generate(planned, bootstrap)
        else:
            _move(planned, execute, wait, as_json, bootstrap)


# The plan


async def _chosen_plan(
    cluster: Cluster, topic: str | None, numbers: tuple[int, ...], factor: int | None, brokers: tuple[BrokerId, ...]
) -> Plan:
    """So many replicas on all living brokers, or as many as now on these brokers."""
    topics = await cluster.all_topics()
    if topic is None:
        partitions = [TopicPartition(name, number) for name, known in topics.items() for number in known.partitions]
    else:
        partitions = await _partitions(cluster, topic, numbers)
    known = {partition: cluster.metadata.partition(partition) for partition in partitions}
    current = {partition: found.replicas for partition, found in known.items() if found is not None}
    try:
        if factor is None:
            return spread(current, brokers)
        return with_replicas(current, factor, await _living(cluster))
    except ValueError as failure:
        raise click.ClickException(str(failure)) from failure


async def _living(cluster: Cluster) -> list[BrokerId]:
    """The brokers that answer now. The others are named: somebody may wonder why they get no replicas."""
    from tidelog.client.admin import Admin

    answering = await Admin(cluster).answering_brokers()
    for broker, failure in answering.items():
        if failure is not None:
            click.echo(f"warning: broker {broker} counts as dead: {failure}", err=True)
    return [broker for broker, failure in answering.items() if failure is None]


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
    from tidelog.client.errors import DeadlineError
    from tidelog.client.leadership import alter_reassignments, wait_until_reassigned

    is_planned = True

    async def work(cluster: Cluster) -> bool:
        nonlocal is_planned
        plan = await planned(cluster)
        is_planned = bool(plan)
        rows = await _plan_rows(cluster, plan)
        await _warn_of_the_dead(cluster, plan)
        results: Mapping[TopicPartition, BrokerError | None] = {}
        if execute and plan:
            results = await alter_reassignments(cluster, plan)
            for partition, row in rows.items():
                row["result"] = "begun" if results[partition] is None else str(results[partition])
        print_rows(rows.values(), as_json=as_json, empty="all partitions have these replicas already")
        begun = {partition: plan[partition] for partition, failure in results.items() if failure is None}
        if wait and begun:
            timeout_s = given_timeout_s() or _WAIT_S
            try:
                await wait_until_reassigned(cluster, begun, timeout_ms=timeout_s * 1000)
            except DeadlineError as failure:
                advice = "`tidelog reassign --list` shows it, and --cancel calls it off"
                raise click.ClickException(f"{failure}; the cluster goes on with it: {advice}") from failure
            click.echo(f"{counted(len(begun), 'partition')} reassigned", err=True)
        return len(begun) == len(results)

    is_done = on_cluster(bootstrap, work, Ends.BY_ITSELF if wait else Ends.AS_A_WHOLE)
    if is_planned and not execute:
        click.echo("this is the plan, nothing was changed; --execute carries it out", err=True)
    if not is_done:
        sys.exit(1)


def _generate(planned: Callable[[Cluster], Awaitable[Plan]], bootstrap: list[Address]) -> None:
    """As Kafka's tool: what is now, to go back to, and what is proposed. Only the second is standard output."""

    async def work(cluster: Cluster) -> tuple[Plan, Plan]:
        plan = await planned(cluster)
        rows = await _plan_rows(cluster, plan)
        await _warn_of_the_dead(cluster, plan)
        return {partition: tuple(row["current"]) for partition, row in rows.items()}, plan

    current, plan = on_cluster(bootstrap, work)
    if not plan:
        raise click.ClickException("there is nothing to move: all partitions have such replicas already")
    click.echo(f"what is now, to go back to it:\n{as_file(current)}\nwhat is proposed:", err=True)
    click.echo(as_file(plan))


async def _warn_of_the_dead(cluster: Cluster, plan: Plan) -> None:
    """A replica on a broker that is not alive is out of sync until the broker comes, and so long the move goes on.
    So it does where all brokers that have the records are dead: nobody is there to copy from.
    """
    from tidelog.client.admin import Admin
    from tidelog.client.errors import named

    alive = {broker.id for broker in (await Admin(cluster).describe_cluster()).brokers}
    for broker in sorted({broker for replicas in plan.values() for broker in replicas} - alive):
        count = sum(broker in replicas for replicas in plan.values())
        click.echo(f"warning: broker {broker} is not alive; it would get {counted(count, 'partition')}", err=True)
    leaderless = [partition for partition in plan if cluster.metadata.leader(partition) is None]
    if leaderless:
        have = "has" if len(leaderless) == 1 else "have"
        click.echo(
            f"warning: {named(leaderless)} {have} no leader to copy from; "
            f"that waits until a broker with the records is back",
            err=True,
        )


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
