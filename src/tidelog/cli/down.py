"""`tidelog down`: stop the brokers that `tidelog up` runs."""

from __future__ import annotations

import os
import signal
import time

import click

from tidelog.cli.commands import SECONDS
from tidelog.cli.up import data_option

_LOOK_EVERY_S = 0.05


@click.command()
@data_option
@click.option(
    "--timeout", "timeout_s", default=90.0, show_default=True, type=SECONDS, help="Seconds to wait for a clean stop."
)
def command(data: str, timeout_s: float) -> None:
    """Stop the brokers of DIR, and return when they have stopped. Their data stays."""
    from tidelog.cli.data_directory import DataDirectory

    directory = DataDirectory(data)
    process = directory.holder()
    if process is None:
        click.echo(f"nothing is running in {directory.path}")
        return
    try:
        os.kill(process, signal.SIGTERM)
    except ProcessLookupError:
        pass
    except PermissionError as failure:
        raise click.ClickException(f"process {process} belongs to another user") from failure
    deadline = time.monotonic() + timeout_s
    while directory.holder() == process:
        if time.monotonic() >= deadline:
            raise click.ClickException(f"process {process} has not stopped after {timeout_s:g} s; it goes on stopping")
        time.sleep(_LOOK_EVERY_S)
    click.echo(f"stopped the brokers of {directory.path}")
