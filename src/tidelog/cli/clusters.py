"""`tidelog cluster`: who is there, who leads, and which partitions are not as they should be."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.cluster import bootstrap_option, call_timeout_option, on_cluster
from tidelog.cli.output import json_option, print_json, print_rows

if TYPE_CHECKING:
    from tidelog.client.addresses import Address
    from tidelog.client.admin import Admin
    from tidelog.client.cluster import Cluster
    from tidelog.client.metadata import ClusterMetadata, Node, PartitionMetadata
    from tidelog.types import BrokerId

_ANSWER_WITHIN_S = 5.0


@click.group("cluster")
def command() -> None:
    """Look at the cluster as a whole."""


@command.command()
@json_option
@call_timeout_option
@bootstrap_option
def describe(as_json: bool, bootstrap: list[Address]) -> None:
    """Show the brokers, what they lead and hold, the partitions that lack replicas or a leader, and strays.

    A stray is a replica that its broker keeps although the cluster does not name it there; see `tidelog log strays`.
    """

    async def work(cluster: Cluster) -> dict[str, Any]:
        from tidelog.client.admin import Admin

        await cluster.all_topics()
        # Metadata may go on listing one that has just died.
        admin = Admin(cluster)
        brokers = (await admin.describe_cluster()).brokers
        return {**_description(cluster.metadata, brokers), "strays": await _strays(admin, brokers)}

    described = on_cluster(bootstrap, work)
    if as_json:
        print_json(described)
        return
    controller = described["controller"]
    title = f"cluster {described['cluster_id']}  controller {'none' if controller is None else controller}"
    print_rows(described["brokers"], as_json=False, title=title)
    lacking = (("under_replicated", "under-replicated"), ("offline", "offline (no leader)"))
    for key, name in lacking:
        print_rows(described[key], as_json=False, title=f"{name}: {len(described[key])} partitions")
    strays = described["strays"]
    held = sum(stray["bytes"] for stray in strays)
    print_rows(strays, as_json=False, title=f"strays: {len(strays)} replicas, {held} bytes")
    if not any(described[key] for key, _ in lacking):
        click.echo(f"all {described['partitions']} partitions have a leader and all their replicas in sync")


async def _strays(admin: Admin, brokers: list[Node]) -> list[dict[str, Any]]:
    return [row for rows in await asyncio.gather(*(_strays_of(admin, broker.id) for broker in brokers)) for row in rows]


async def _strays_of(admin: Admin, broker: BrokerId) -> list[dict[str, Any]]:
    """A broker that cannot be asked is named on stderr."""
    from tidelog.errors import TidelogError
    from tidelog.log.names import is_stray

    try:
        directories = await asyncio.wait_for(admin.describe_log_dirs(broker), _ANSWER_WITHIN_S)
    except (TidelogError, TimeoutError) as failure:
        click.echo(f"broker {broker} cannot be asked for its strays: {failure or 'it does not answer'}", err=True)
        return []
    return [
        {
            "broker": broker,
            "log_directory": directory.log_dir,
            "stray": topic.name,
            "bytes": sum(partition.partition_size for partition in topic.partitions),
        }
        for directory in directories
        for topic in directory.topics
        if is_stray(topic.name)
    ]


def _description(metadata: ClusterMetadata, nodes: list[Node]) -> dict[str, Any]:
    alive = {node.id: node for node in nodes}
    partitions = [
        (topic.name, partition)
        for topic in sorted(metadata.topics.values(), key=lambda topic: topic.name)
        for partition in topic.partitions.values()
    ]
    return {
        "cluster_id": metadata.cluster_id,
        "controller": metadata.controller if metadata.controller in alive else None,
        "brokers": _brokers(alive, metadata.controller, [partition for _, partition in partitions]),
        "partitions": len(partitions),
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
