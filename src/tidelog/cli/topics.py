"""`tidelog topics`: making, showing, changing and removing topics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli import log_directories
from tidelog.cli.commands import COUNT, REPLICATION_FACTOR
from tidelog.cli.completion import names_of_topic_settings, topic_names, topic_settings
from tidelog.cli.on_cluster import bootstrap_option, call_timeout_option, config_option, on_cluster
from tidelog.cli.output import json_option, print_rows
from tidelog.cli.setting_names import known_names, refuse_unknown
from tidelog.cli.setting_values import as_value
from tidelog.cli.trim import trim
from tidelog.errors import ErrorCode
from tidelog.types import TopicPartition
from tidelog.wording import counted

if TYPE_CHECKING:
    from tidelog.client.addresses import Address
    from tidelog.client.cluster import Cluster
    from tidelog.client.metadata import TopicMetadata
    from tidelog.client.watermarks import ReplicaWatermarks
    from tidelog.wire.messages.configs import DescribeConfigsResourceResult

    Watermarks = dict[TopicPartition, list[ReplicaWatermarks]]
    Sizes = dict[TopicPartition, list[dict[str, Any]]]
    Described = tuple[TopicMetadata, list[DescribeConfigsResourceResult], Watermarks | None]


@click.group("topics")
def command() -> None:
    """Make, show, change and remove topics."""


command.add_command(trim)


@command.command()
@click.argument("name")
@click.option("--partitions", type=COUNT, help="How many; else the broker's num.partitions.")
@click.option(
    "--replication-factor", type=REPLICATION_FACTOR, help="Copies; else the broker's default.replication.factor."
)
@config_option(
    shell_complete=topic_settings, help="A setting of the topic, such as retention.ms=60000; may be given again."
)
@click.option("--if-not-exists", is_flag=True, help="A topic that is there already is no error.")
@json_option
@call_timeout_option
@bootstrap_option
def create(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: dict[str, str],
    if_not_exists: bool,
    as_json: bool,
    bootstrap: list[Address],
) -> None:
    """Make a topic."""
    from tidelog.client.admin import DEFAULT_COUNT, Admin
    from tidelog.client.errors import BrokerError

    async def work(cluster: Cluster) -> tuple[bool, TopicMetadata]:
        try:
            await Admin(cluster).create_topic(
                name,
                partitions=partitions or DEFAULT_COUNT,
                replication_factor=replication_factor or DEFAULT_COUNT,
                configs=configs,
            )
        except BrokerError as failure:
            if failure.code != ErrorCode.TOPIC_ALREADY_EXISTS or not if_not_exists:
                raise
            return False, await cluster.topic(name)
        return True, await cluster.topic(name)

    created, topic = on_cluster(bootstrap, work)
    row = {**_summary(topic), "created": created}
    if as_json:
        print_rows([row], as_json=True)
    else:
        click.echo(
            f"{'created topic' if created else 'there is already a topic'} {name}: "
            f"{_counted(topic)}, replication factor {row['replication_factor']}"
        )


@command.command("list")
@click.option("--internal", is_flag=True, help="Show the topics too that the cluster keeps for itself.")
@json_option
@call_timeout_option
@bootstrap_option
def list_(internal: bool, as_json: bool, bootstrap: list[Address]) -> None:
    """List all topics."""
    topics = on_cluster(bootstrap, lambda cluster: cluster.all_topics())
    rows = [_summary(topic) for topic in topics.values() if internal or not topic.is_internal]
    print_rows(rows, as_json=as_json, empty="there are no topics; `tidelog topics create NAME` makes one")


@command.command()
@click.argument("names", nargs=-1, shell_complete=topic_names)
@click.option("--watermarks", is_flag=True, help="Ask each replica for its log end offset and high watermark: LEO/HW.")
@click.option("--sizes", is_flag=True, help="Ask each broker for the bytes of its replicas, and where they are.")
@json_option
@call_timeout_option
@bootstrap_option
def describe(names: tuple[str, ...], watermarks: bool, sizes: bool, as_json: bool, bootstrap: list[Address]) -> None:
    """Show the partitions and settings of topics, or of all of them."""

    async def work(cluster: Cluster) -> tuple[list[Described], Sizes | None]:
        return await _described(cluster, names, watermarks), await _sizes(cluster) if sizes else None

    described, held = on_cluster(bootstrap, work)
    for topic, entries, asked in described:
        if as_json:
            detail = list(_partitions(topic, asked, held, as_json=True))
            configs = {entry.name: as_value(entry) for entry in entries}
            print_rows([{**_summary(topic), "configs": configs, "detail": detail}], as_json=True)
            continue
        summary = _summary(topic)
        settings = "".join(f"\n{entry.name}={entry.value}" for entry in sorted(entries, key=lambda entry: entry.name))
        title = f"{topic.name}  id {summary['id']}  replication factor {summary['replication_factor']}{settings}"
        print_rows(_partitions(topic, asked, held, as_json=False), as_json=False, title=title)


async def _described(cluster: Cluster, names: tuple[str, ...], watermarks: bool) -> list[Described]:
    """Each topic, the settings of its own, and what its replicas said if they were asked."""
    from tidelog.client.admin import Admin, ConfigSource, Resource, ResourceType
    from tidelog.client.watermarks import replica_watermarks

    if names:
        topics = [await cluster.topic(name, led=False, fresh=True) for name in names]
    else:
        topics = [topic for topic in (await cluster.all_topics()).values() if not topic.is_internal]
    asked = await replica_watermarks(cluster, topics) if watermarks else None
    described = []
    for topic in topics:
        configs = await Admin(cluster).describe_configs(Resource(ResourceType.TOPIC, topic.name))
        own = [entry for entry in configs if entry.config_source == ConfigSource.DYNAMIC_TOPIC]
        described.append((topic, own, asked))
    return described


async def _sizes(cluster: Cluster) -> Sizes:
    from tidelog.client.admin import Admin

    admin = Admin(cluster)
    alive = [broker.id for broker in (await admin.describe_cluster()).brokers]
    return log_directories.replica_sizes(await log_directories.ask(admin, alive))


@command.command()
@click.argument("name", shell_complete=topic_names)
@click.option("--partitions", type=COUNT, help="Grow to that many; a topic never shrinks.")
@config_option(shell_complete=topic_settings, help="Set this; may be given again.")
@click.option(
    "--delete-config",
    "deleted",
    multiple=True,
    metavar="NAME",
    shell_complete=names_of_topic_settings,
    help="Back to the broker's value.",
)
@call_timeout_option
@bootstrap_option
def alter(
    name: str, partitions: int | None, configs: dict[str, str], deleted: tuple[str, ...], bootstrap: list[Address]
) -> None:
    """Change the number of partitions or the settings of a topic."""
    from tidelog.client.admin import Admin, Resource, ResourceType

    if partitions is None and not configs and not deleted:
        raise click.UsageError("nothing to change: pass --partitions, --config or --delete-config")

    async def work(cluster: Cluster) -> None:
        if configs or deleted:
            resource = Resource(ResourceType.TOPIC, name)
            refuse_unknown([*configs, *deleted], await known_names(cluster, resource), resource)
            await Admin(cluster).alter_configs(resource, changed=configs, deleted=deleted)
        if partitions is not None:
            await Admin(cluster).create_partitions(name, partitions)

    on_cluster(bootstrap, work)
    click.echo(f"changed topic {name}")


@command.command()
@click.argument("names", nargs=-1, required=True, shell_complete=topic_names)
@click.option("--yes", is_flag=True, help="Do not ask.")
@call_timeout_option
@bootstrap_option
def delete(names: tuple[str, ...], yes: bool, bootstrap: list[Address]) -> None:
    """Remove topics and all that is in them."""
    from tidelog.client.admin import Admin

    wanted = list(dict.fromkeys(names))

    async def look(cluster: Cluster) -> list[TopicMetadata]:
        return [await cluster.topic(name, led=False, fresh=True) for name in wanted]

    if not yes:
        found = ", ".join(f"{topic.name} ({_counted(topic)})" for topic in on_cluster(bootstrap, look))
        click.confirm(f"Delete {found} and all records in {'it' if len(wanted) == 1 else 'them'}?", abort=True)

    async def work(cluster: Cluster) -> None:
        for name in wanted:
            await Admin(cluster).delete_topic(name)
            click.echo(f"deleted topic {name}")

    on_cluster(bootstrap, work)


def _counted(topic: TopicMetadata) -> str:
    return counted(len(topic.partitions), "partition")


def _summary(topic: TopicMetadata) -> dict[str, Any]:
    from tidelog.wire.uuids import uuid_text

    return {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "replication_factor": max((len(partition.replicas) for partition in topic.partitions.values()), default=0),
        "id": uuid_text(topic.topic_id),
        "internal": topic.is_internal,
    }


def _partitions(
    topic: TopicMetadata, watermarks: Watermarks | None, sizes: Sizes | None, *, as_json: bool
) -> Iterator[dict[str, Any]]:
    for partition in topic.partitions.values():
        row: dict[str, Any] = {
            "partition": partition.partition,
            "leader": partition.leader if partition.leader >= 0 else None,
            "leader_epoch": partition.leader_epoch,
            "replicas": list(partition.replicas),
            "isr": list(partition.isr),
            "offline": list(partition.offline_replicas),
        }
        if watermarks is not None:
            replicas = watermarks[TopicPartition(topic.name, partition.partition)]
            row["watermarks"] = [_as_object(one) for one in replicas] if as_json else "  ".join(map(_as_text, replicas))
        if sizes is not None:
            held = sizes.get(TopicPartition(topic.name, partition.partition), [])
            shown = (f"{replica['broker']}: {replica['bytes']}" for replica in held)
            row["sizes"] = held if as_json else "  ".join(shown)
        yield row


def _as_object(replica: ReplicaWatermarks) -> dict[str, Any]:
    offsets = {"log_end_offset": replica.log_end_offset, "high_watermark": replica.high_watermark}
    failure = {} if replica.failure is None else {"error": replica.failure}
    return {"broker": replica.broker, **offsets, **failure}


def _as_text(replica: ReplicaWatermarks) -> str:
    return f"{replica.broker}: {replica.failure or f'{replica.log_end_offset}/{replica.high_watermark}'}"
