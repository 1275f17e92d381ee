"""`tidelog cluster`: who is there, who leads, and which partitions are not as they should be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tidelog.cli import log_directories
from tidelog.cli.on_cluster import bootstrap_option, call_timeout_option, on_cluster
from tidelog.cli.output import Size, json_option, print_json, print_rows
from tidelog.wording import counted

if TYPE_CHECKING:
    from tidelog.client.addresses import Address
    from tidelog.client.cluster import Cluster
    from tidelog.client.metadata import ClusterMetadata, Node, PartitionMetadata
    from tidelog.types import BrokerId


@click.group("cluster")
def command() -> None:
    """Look at the cluster as a whole."""


@command.command()
@json_option
@call_timeout_option
@bootstrap_option
def describe(as_json: bool, bootstrap: list[Address]) -> None:
    """Show the brokers, partitions that lack replicas or a leader, strays, and log directories that failed.

    A stray is a replica that its broker keeps although the cluster does not name it there; see `tidelog log strays`.
    Partitions of internal topics are counted, not listed; --json lists them too.
    """

    async def work(cluster: Cluster) -> dict[str, Any]:
        from tidelog.client.admin import Admin

        await cluster.all_topics()
        # Metadata may go on listing one that has just died.
        admin = Admin(cluster)
        brokers = (await admin.describe_cluster()).brokers
        directories = await log_directories.ask(admin, [broker.id for broker in brokers])
        return {
            **_description(cluster.metadata, brokers),
            "strays": list(log_directories.strays(directories)),
            "failed_directories": list(log_directories.failed(directories)),
        }

    described = on_cluster(bootstrap, work)
    if as_json:
        print_json(described)
    else:
        _show(described)


@command.command("log-dirs")
@json_option
@call_timeout_option
@bootstrap_option
def log_dirs(as_json: bool, bootstrap: list[Address]) -> None:
    """Show the log directories of the living brokers: how much they hold, and how much room their volumes have."""

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        from tidelog.client.admin import Admin

        admin = Admin(cluster)
        brokers = (await admin.describe_cluster()).brokers
        return list(log_directories.rows(await log_directories.ask(admin, [broker.id for broker in brokers])))

    rows = on_cluster(bootstrap, work)
    shown = rows if as_json else log_directories.for_people(rows)
    print_rows(shown, as_json=as_json, empty="no broker tells of its log directories")


# What is shown


def _show(described: dict[str, Any]) -> None:
    controller = described["controller"]
    title = f"cluster {described['cluster_id']}  controller {'none' if controller is None else controller}"
    print_rows(described["brokers"], as_json=False, title=title)
    internal = described["internal"]
    lacking = (("under_replicated", "under-replicated"), ("offline", "offline (no leader)"))
    for key, name in lacking:
        if described[key]:
            rows = [row for row in described[key] if row["topic"] not in internal["topics"]]
            title = f"{name}: {_counted(len(described[key]), len(described[key]) - len(rows))}"
            print_rows(rows, as_json=False, title=title, empty=title)
    strays, failed = described["strays"], described["failed_directories"]
    held = Size(sum(stray["bytes"] for stray in strays))
    shown = log_directories.for_people(strays)
    print_rows(shown, as_json=False, title=f"strays: {counted(len(strays), 'replica')}, {held}")
    print_rows(log_directories.for_people(failed), as_json=False, title=f"failed log directories: {len(failed)}")
    if not any(described[key] for key, _ in lacking):
        all_of_them = _counted(described["partitions"], internal["partitions"])
        told = f"all {all_of_them} have a leader and all their replicas in sync"
        click.echo(told if described["partitions"] else "there are no topics")


def _counted(partitions: int, internal: int) -> str:
    return counted(partitions, "partition") + (f" ({internal} of internal topics)" if internal else "")


# What metadata says


def _description(metadata: ClusterMetadata, nodes: list[Node]) -> dict[str, Any]:
    alive = {node.id: node for node in nodes}
    partitions = [
        (topic.name, partition)
        for topic in sorted(metadata.topics.values(), key=lambda topic: topic.name)
        for partition in topic.partitions.values()
    ]
    internal = {topic.name for topic in metadata.topics.values() if topic.is_internal}
    return {
        "cluster_id": metadata.cluster_id,
        "controller": metadata.controller if metadata.controller in alive else None,
        "brokers": _brokers(alive, metadata.controller, [partition for _, partition in partitions]),
        "partitions": len(partitions),
        "internal": {"topics": sorted(internal), "partitions": sum(topic in internal for topic, _ in partitions)},
        "under_replicated": [_row(topic, one) for topic, one in partitions if not set(one.replicas) <= set(one.isr)],
        "offline": [_row(topic, one) for topic, one in partitions if one.leader not in alive],
    }


def _brokers(
    alive: dict[BrokerId, Node], controller: BrokerId, partitions: list[PartitionMetadata]
) -> list[dict[str, Any]]:
    """Those that are alive, and those that are not and should hold replicas."""
    from tidelog.client.addresses import address_text

    holders = {broker for partition in partitions for broker in partition.replicas}
    rows = []
    for broker in sorted(holders | set(alive)):
        node = alive.get(broker)
        rows.append(
            {
                "broker": broker,
                "address": None if node is None else address_text(node.address),
                "rack": None if node is None else node.rack,
                "alive": node is not None,
                "controller": broker == controller,
                "leads": sum(partition.leader == broker for partition in partitions),
                "holds": sum(broker in partition.replicas for partition in partitions),
            }
        )
    return rows


def _row(topic: str, partition: PartitionMetadata) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": partition.partition,
        "leader": partition.leader if partition.leader >= 0 else None,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
    }
