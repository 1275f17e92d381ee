"""`tidelog broker`: one broker in this process, configured by a file as Kafka's is."""

from __future__ import annotations

import os
import socket
import sys

import click

from tidelog.cli.completion import broker_settings

log_level_option = click.option(
    "--log-level",
    default="INFO",
    show_default=True,
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    help="What a broker writes to its log.",
)


@click.command()
@click.option("--config", "file", required=True, type=click.Path(exists=True, dir_okay=False), help="server.properties")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=broker_settings,
    help="Over what the file says; repeatable.",
)
@log_level_option
@click.option(
    "--log-file", type=click.Path(dir_okay=False), help="Write the log to this file, and rotate it at 16 MiB."
)
@click.option("--supervised-by", type=int, hidden=True, help="End with the process of this id.")
@click.option("--ready-fd", type=int, hidden=True, help="Gets the bound ports as JSON when clients can be served.")
@click.option("--warnings-fd", type=int, hidden=True, help="Gets each warning as a line.")
def command(
    file: str,
    overrides: tuple[str, ...],
    log_level: str,
    log_file: str | None,
    supervised_by: int | None,
    ready_fd: int | None,
    warnings_fd: int | None,
) -> None:
    """Run one broker until SIGINT or SIGTERM."""
    from tidelog.broker.main import run
    from tidelog.cli import broker_log
    from tidelog.config.broker import BrokerConfig
    from tidelog.config.errors import ConfigError

    properties = read_properties(file)
    try:
        config = BrokerConfig.load(properties, split_settings(overrides), hostname=socket.gethostname())
    except ConfigError as failure:
        for problem in failure.problems:
            click.echo(f"Error: {problem}", err=True)
        sys.exit(1)
    try:
        broker_log.set_up(config.broker_id, log_level, log_file, warnings_fd)
    except OSError as failure:
        raise click.ClickException(f"the log file {log_file} cannot be written: {failure.strerror}") from failure
    if supervised_by is not None:
        _end_with(supervised_by)
    sys.exit(run(config, lambda broker: _tell(ready_fd, broker.ports_bound)))


def read_properties(file: str) -> dict[str, str]:
    from tidelog.config.properties import parse_properties

    try:
        with open(file, encoding="utf-8") as opened:
            return parse_properties(opened.read())
    except UnicodeDecodeError as failure:
        raise click.ClickException(f"{file} is not UTF-8 (byte {failure.start}); write it as UTF-8") from failure
    except OSError as failure:
        raise click.ClickException(f"{file} cannot be read: {failure.strerror}") from failure


def split_settings(settings: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{setting!r} is not KEY=VALUE", param_hint="--set")
        found[name.strip()] = value.strip()
    return found


def _tell(ready_fd: int | None, ports: dict[str, int]) -> None:
    """Clients can be served."""
    _tell_systemd()
    if ready_fd is not None:
        import json

        os.write(ready_fd, json.dumps(ports).encode() + b"\n")
        os.close(ready_fd)


def _tell_systemd() -> None:
    """A unit of Type=notify counts as started now; elsewhere there is no such socket. See systemd's sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    abstract = address.startswith("@")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notified:
            notified.connect("\0" + address[1:] if abstract else address)
            notified.send(b"READY=1")
    except OSError as failure:
        click.echo(f"systemd cannot be told at {address} that the broker is ready: {failure}", err=True)


def _end_with(parent: int) -> None:
    """Ask the kernel for SIGTERM when the parent dies, however it does."""
    import ctypes
    import signal

    set_parent_death_signal = 1
    ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
