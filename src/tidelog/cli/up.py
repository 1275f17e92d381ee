"""`tidelog up`: a cluster on this machine, one process per broker, under supervision."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from tidelog.cli.broker import log_level_option, split_settings
from tidelog.cli.completion import broker_settings
from tidelog.wording import counted

if TYPE_CHECKING:
    from tidelog.cli.broker_process import BrokerProcess
    from tidelog.cli.data_directory import DataDirectory, Running

DEFAULT_DATA = "tidelog-data"
_FIRST_METRICS_PORT = 9404
_ANY_HOST = ("0.0.0.0", "::", "")

DEVELOPER_SETTINGS = {
    "group.initial.rebalance.delay.ms": ("0", "the first consumer of a group need not wait for others"),
    "controlled.shutdown.retry.backoff.ms": ("300", "all brokers stop at once, and none is left to hand over to"),
}
"""What `up` sets for those who try things out, and why. `tidelog broker` has Kafka's defaults."""

data_option = click.option(
    "--data", default=DEFAULT_DATA, show_default=True, type=click.Path(file_okay=False), metavar="DIR"
)


class _Plan(NamedTuple):
    """What the command line asks for."""

    brokers: int
    host: str
    advertised: str | None
    port: int
    settings: Mapping[str, str]
    zookeeper: str | None
    log_level: str

    @property
    def shown_host(self) -> str:
        """Where clients of this machine find the brokers."""
        return self.advertised or ("127.0.0.1" if self.host in _ANY_HOST else self.host)


@click.command()
@click.option("--brokers", type=click.IntRange(1, 100), help="How many, with ids 1..N; else as many as DIR has, or 1.")
@click.option("--fewer", is_flag=True, help="Start fewer brokers than DIR has: what only the others hold is offline.")
@click.option(
    "--port",
    default=9092,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Of the first broker; the next ones count up. 0: any free ports.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--advertise", metavar="HOST", help="The host that clients are told; else that of --host.")
@data_option
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=broker_settings,
    help="For every broker; repeatable.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(-1, 65535),
    help=f"Of the first broker, for Prometheus; 0: any free port, -1: none. [default: {_FIRST_METRICS_PORT} if free]",
)
@click.option(
    "--zookeeper",
    metavar="HOST:PORT[/CHROOT]",
    help="The brokers agree through this ZooKeeper, and not through DIR. `tidelog zookeeper` runs one.",
)
@click.option("--restart", is_flag=True, help="Start a broker that died again.")
@log_level_option
@click.option("--detach", is_flag=True, help="Return when the brokers are ready. `tidelog down` stops them.")
@click.option(
    "--ready-file", type=click.Path(dir_okay=False), help="Write addresses and process ids here when all are ready."
)
@click.option("--ready-fd", type=int, hidden=True, help="Gets a line when all are ready.")
def command(
    brokers: int | None,
    fewer: bool,
    port: int,
    host: str,
    advertise: str | None,
    data: str,
    settings: tuple[str, ...],
    metrics_port: int | None,
    zookeeper: str | None,
    restart: bool,
    log_level: str,
    detach: bool,
    ready_file: str | None,
    ready_fd: int | None,
) -> None:
    """Run a cluster until Ctrl-C. Its data stays in DIR, for the next time.

    \b
    Examples:
      tidelog up                                   one broker on 127.0.0.1:9092
      tidelog up --brokers 3 --data ci --port 0    three brokers on free ports
      tidelog up --detach; tidelog status; tidelog down
    """
    from tidelog.cli.data_directory import DataDirectory
    from tidelog.cli.supervisor import Supervisor, write_ready_file

    given = _check(port, host, advertise, settings, zookeeper)
    _check_paths(data, ready_file)
    directory = DataDirectory(data)
    if detach:
        from tidelog.cli.detached import start_detached

        sys.exit(start_detached(directory, sys.argv[1:]))
    _check_nothing_runs(directory)
    directory.lock()
    known = directory.brokers
    try:
        count = _count(directory.path, brokers, known, fewer)
        plan = _Plan(count, host, advertise, port, given, zookeeper, log_level)
        _check_ports(plan)
        processes = _processes(plan, directory.path, _metrics_ports(plan, metrics_port))
    except click.ClickException:
        directory.give_up()
        raise
    directory.remember(max(count, directory.highest_broker if fewer else known))

    def tell_ready(running: Running) -> None:
        _say_ready(running, directory, known, zookeeper)
        if ready_file is not None:
            write_ready_file(ready_file, running)
        if ready_fd is not None:
            os.write(ready_fd, b"ready\n")
            os.close(ready_fd)

    status = Supervisor(directory, processes, plan.shown_host, restart=restart, tell_ready=tell_ready).run()
    if ready_file is not None:
        Path(ready_file).unlink(missing_ok=True)
    sys.exit(status)


def _check(
    port: int, host: str, advertise: str | None, settings: tuple[str, ...], zookeeper: str | None
) -> dict[str, str]:
    """What can be wrong without a look at the directory. Returns the settings that were given."""
    from tidelog.config.broker import unknown_setting

    if zookeeper is not None and not zookeeper.partition("/")[0]:
        raise click.BadParameter(f"{zookeeper!r} is not HOST:PORT[/CHROOT]", param_hint="--zookeeper")
    if host in _ANY_HOST and advertise is None:
        raise click.BadParameter(
            f"{host!r} is every address of this machine: --advertise says by which one clients find the brokers",
            param_hint="--host",
        )
    given = split_settings(settings)
    for name in given:
        problem = unknown_setting(name)
        if problem is not None:
            raise click.BadParameter(problem, param_hint="--set")
    return given


def _check_paths(data: str, ready_file: str | None) -> None:
    if not data:
        raise click.BadParameter("the name of the directory is empty", param_hint="--data")
    if ready_file is not None and not os.access(Path(ready_file).absolute().parent, os.W_OK):
        raise click.BadParameter(
            f"{Path(ready_file).absolute().parent} is no directory that can be written to", param_hint="--ready-file"
        )


def _check_nothing_runs(directory: DataDirectory) -> None:
    """Brokers that were started by their properties files. Those of another `up` hold the lock."""
    from tidelog.cli.data_directory import process_text

    by_hand = directory.by_hand()
    if by_hand:
        raise click.ClickException(
            f"broker {by_hand[0].broker} of {directory.path} runs already, as {process_text(by_hand[0].process)}; "
            f"`tidelog down --data {directory.path}` stops it"
        )


def _count(data: Path, wanted: int | None, known: int, fewer: bool) -> int:
    """How many brokers to start, of a directory that has so many."""
    count = wanted or known or 1
    if count < known and not fewer:
        raise click.ClickException(
            f"{data} has {counted(known, 'broker')}. With {count} of them, partitions that only the others "
            f"hold are offline; pass --fewer if you want that, or another --data"
        )
    return count


def _check_ports(plan: _Plan) -> None:
    from tidelog.host.listening import is_free, listener, why_not_here

    if plan.port and plan.port + plan.brokers - 1 > 65535:
        raise click.BadParameter(
            f"{plan.brokers} brokers from port {plan.port} on go beyond 65535", param_hint="--port"
        )
    problem = why_not_here(plan.host)
    if problem is not None:
        raise click.ClickException(f"{plan.host} cannot be listened on: {problem}; try another --host")
    for port in range(plan.port, plan.port + plan.brokers if plan.port else 0):
        if not is_free(plan.host, port):
            process = listener(port)
            used = "is in use, or must not be used" if process is None else f"is in use by process {process}"
            raise click.ClickException(f"port {port} of {plan.host} {used}; try --port")


def _metrics_ports(plan: _Plan, wanted: int | None) -> list[int]:
    """One for each broker. Unless asked for, it is the one that exporters of Kafka's metrics use, if that is free."""
    from tidelog.host.listening import is_free

    first = _FIRST_METRICS_PORT if wanted is None else wanted
    ports = [first + at if first > 0 else first for at in range(plan.brokers)]
    if wanted is None:
        return [port if plan.port and is_free("127.0.0.1", port) else 0 for port in ports]
    return ports


def _processes(plan: _Plan, data: Path, metrics_ports: list[int]) -> list[BrokerProcess]:
    from tidelog.cli.broker_process import BrokerProcess
    from tidelog.config.broker import BrokerConfig
    from tidelog.config.errors import ConfigError

    processes = []
    for number, metrics_port in enumerate(metrics_ports, start=1):
        settings = _settings(plan, number, data, metrics_port)
        try:
            BrokerConfig.load(settings)
        except ConfigError as failure:
            told = "; ".join(failure.problems)
            if any(name in told for name in plan.settings):
                raise click.BadParameter(told, param_hint="--set") from failure
            raise click.ClickException(told) from failure
        processes.append(BrokerProcess(number, data, settings, plan.host, plan.log_level))
    return processes


def _settings(plan: _Plan, number: int, data: Path, metrics_port: int) -> dict[str, str]:
    copies = str(min(3, plan.brokers))
    port = plan.port and plan.port + number - 1
    shown = {} if plan.advertised is None else {"advertised.listeners": f"PLAINTEXT://{_url(plan.advertised)}:{port}"}
    agreement = (
        {"tidelog.coordination.dir": str(data / "coordination")}
        if plan.zookeeper is None
        else {"zookeeper.connect": plan.zookeeper}
    )
    return {
        "broker.id": str(number),
        "listeners": f"PLAINTEXT://{_url(plan.host)}:{port}",
        **shown,
        "log.dirs": str(data / f"broker-{number}"),
        **agreement,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": str(min(2, plan.brokers)),
        **{name: value for name, (value, _) in DEVELOPER_SETTINGS.items()},
        "tidelog.metrics.port": str(metrics_port),
        **plan.settings,
    }


def _url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _say_ready(running: Running, directory: DataDirectory, known: int, zookeeper: str | None) -> None:
    click.echo(f"tidelog is up: {running.bootstrap}   data: {directory.path}   stop: Ctrl-C")
    for broker in running.brokers:
        if broker.metrics is not None:
            click.echo(f"metrics of broker {broker.broker}: {broker.metrics}")
    if 0 < known < len(running.brokers):
        copies, new = min(3, len(running.brokers)), len(running.brokers) - known
        click.echo(
            f"{counted(new, 'broker')} {'is' if new == 1 else 'are'} new. Topics keep the replicas that they have. "
            f"This gives all topics, and what groups have committed, {copies} replicas: tidelog reassign "
            f"--replication-factor {copies} --all --execute --bootstrap {running.brokers[0].address}"
        )
