"""`tidelog up`: a cluster on this machine, one process per broker, under supervision."""

from __future__ import annotations

import sys

import click

from tidelog.cli.broker import split_settings


@click.command()
@click.option("--brokers", default=1, show_default=True, type=click.IntRange(1, 100), help="How many, with ids 1..N.")
@click.option("--port", default=9092, show_default=True, type=click.IntRange(1, 65535), help="Of the first broker.")
@click.option("--data", default="tidelog-data", show_default=True, type=click.Path(file_okay=False), metavar="DIR")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="For every broker; repeatable. tidelog.metrics.port counts up.",
)
@click.option(
    "--zookeeper",
    metavar="HOST:PORT[/CHROOT]",
    help="The brokers agree through this ZooKeeper, and not through DIR. `tidelog zookeeper` runs one.",
)
@click.option("--restart", is_flag=True, help="Start a broker that died again.")
def command(
    brokers: int, port: int, data: str, settings: tuple[str, ...], zookeeper: str | None, restart: bool
) -> None:
    """Run a cluster until Ctrl-C. Its data stays in DIR, for the next time."""
    if port + brokers - 1 > 65535:
        raise click.BadParameter(f"{brokers} brokers from port {port} on go beyond 65535", param_hint="--port")
    if zookeeper is not None and not zookeeper.partition("/")[0]:
        raise click.BadParameter(f"{zookeeper!r} is not HOST:PORT[/CHROOT]", param_hint="--zookeeper")
    from tidelog.cli.supervisor import Supervisor

    given = split_settings(settings)
    sys.exit(Supervisor(brokers, port, data, given, zookeeper=zookeeper, restart=restart).run())
