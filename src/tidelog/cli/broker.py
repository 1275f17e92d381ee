"""`tidelog broker`: one broker in this process, configured by a file as Kafka's is."""

from __future__ import annotations

import logging
import os
import socket
import sys

import click


@click.command()
@click.option("--config", "file", required=True, type=click.Path(exists=True, dir_okay=False), help="server.properties")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Over what the file says; repeatable.")
@click.option("--log-level", default="INFO", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]))
@click.option("--supervised-by", type=int, hidden=True, help="End with the process of this id.")
@click.option("--ready-fd", type=int, hidden=True, help="Gets the bound ports as JSON when clients can be served.")
def command(
    file: str, overrides: tuple[str, ...], log_level: str, supervised_by: int | None, ready_fd: int | None
) -> None:
    """Run one broker until SIGINT or SIGTERM."""
    from tidelog.broker.main import run
    from tidelog.config.broker import BrokerConfig
    from tidelog.config.errors import ConfigError
    from tidelog.config.properties import parse_properties

    with open(file, encoding="utf-8") as opened:
        properties = parse_properties(opened.read())
    try:
        config = BrokerConfig.load(properties, split_settings(overrides), hostname=socket.gethostname())
    except ConfigError as failure:
        for problem in failure.problems:
            click.echo(f"tidelog: {problem}", err=True)
        sys.exit(1)
    logging.basicConfig(
        level=log_level,
        stream=sys.stderr,
        format=f"%(asctime)s %(levelname)s [broker {config.broker_id}] %(message)s (%(name)s)",
    )
    if supervised_by is not None:
        _end_with(supervised_by)
    sys.exit(run(config, lambda broker: _tell(ready_fd, broker.ports_bound)))


def split_settings(settings: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{setting!r} is not KEY=VALUE", param_hint="--set")
        found[name.strip()] = value.strip()
    return found


def _tell(ready_fd: int | None, ports: dict[str, int]) -> None:
    if ready_fd is not None:
        import json

        os.write(ready_fd, json.dumps(ports).encode() + b"\n")
        os.close(ready_fd)


def _end_with(parent: int) -> None:
    """Ask the kernel for SIGTERM when the parent dies, however it does."""
    import ctypes
    import signal

    set_parent_death_signal = 1
    ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
