"""`tidelog down`: stop the brokers of a data directory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from tidelog.cli.commands import SECONDS
from tidelog.cli.up import data_option

if TYPE_CHECKING:
    from tidelog.cli.data_directory import DataDirectory, RunningBroker

_LOOK_EVERY_S = 0.05


@click.command()
@data_option
@click.option("--broker", type=click.IntRange(min=1), metavar="ID", help="Only this one; the others go on.")
@click.option(
    "--timeout", "timeout_s", default=90.0, show_default=True, type=SECONDS, help="Seconds to wait for a clean stop."
)
def command(data: str, broker: int | None, timeout_s: float) -> None:
    """Stop the brokers of DIR, and return when they have stopped. Their data stays.

    Brokers that were started by hand, with their properties files in DIR, are stopped too. If the brokers were
    started by `up --restart`, a single one that is stopped comes back.
    """
    from tidelog.cli.data_directory import DataDirectory

    directory = DataDirectory(data)
    if broker is not None:
        _stop_one(directory, broker, timeout_s)
        return
    supervisor, by_hand = directory.holder(), directory.by_hand()
    processes = [*([] if supervisor is None else [supervisor]), *(broker.process for broker in by_hand)]
    if not processes:
        click.echo(f"nothing is running in {directory.path}")
        return

    def left() -> list[int]:
        """Those that hold their locks still. A process that has let go of them may be gone, and its id another's."""
        holders = {directory.holder(), *(broker.process for broker in directory.by_hand())}
        return [process for process in processes if process in holders]

    _stop(processes, left, timeout_s)
    click.echo(f"stopped the brokers of {directory.path}{_named(by_hand)}")


def _stop_one(directory: DataDirectory, number: int, timeout_s: float) -> None:
    running = directory.broker(number)
    if running is None:
        click.echo(f"broker {number} of {directory.path} is not running")
        return
    process = running.process

    def left() -> list[int]:
        now = directory.broker(number)
        return [process] if now is not None and now.process == process else []

    _stop([process], left, timeout_s)
    click.echo(f"stopped broker {number} of {directory.path}")


def _stop(processes: list[int], left: Callable[[], list[int]], timeout_s: float) -> None:
    for process in processes:
        _terminate(process)
    deadline = time.monotonic() + timeout_s
    while remaining := left():
        if time.monotonic() >= deadline:
            raise click.ClickException(
                f"process {remaining[0]} has not stopped after {timeout_s:g} s; it goes on stopping"
            )
        time.sleep(_LOOK_EVERY_S)


def _terminate(process: int) -> None:
    if process <= 0:
        raise click.ClickException("the brokers run outside of this container; stop them there")
    try:
        os.kill(process, signal.SIGTERM)
    except ProcessLookupError:
        pass
    except PermissionError as failure:
        raise click.ClickException(f"process {process} belongs to another user") from failure


def _named(by_hand: Sequence[RunningBroker]) -> str:
    if not by_hand:
        return ""
    numbers = ", ".join(str(broker.broker) for broker in by_hand)
    return f", with {'broker' if len(by_hand) == 1 else 'brokers'} {numbers} that ran without `tidelog up`"
