"""`tidelog status`: whether `tidelog up` runs the brokers of a directory, and where they are."""

from __future__ import annotations

import os
import sys

import click

from tidelog.cli.output import json_option, print_json, print_rows
from tidelog.cli.up import data_option

_NOT_RUNNING = 3
_SOME_ARE_DOWN = 1


@click.command()
@data_option
@json_option
def command(data: str, as_json: bool) -> None:
    """Show the brokers of DIR. Status 0: all run; 1: some do not, or not yet; 3: none does."""
    from tidelog.cli.data_directory import DataDirectory

    directory = DataDirectory(data)
    known, running = directory.brokers, directory.running()
    if running is None:
        if as_json:
            print_json({"running": False, "data": str(directory.path), "brokers": []})
        else:
            has = f"it has {known} brokers; " if known else ""
            click.echo(f"nothing is running in {directory.path}; {has}`tidelog up --data {directory.path}` starts them")
        sys.exit(_NOT_RUNNING)
    rows = [{**broker._asdict(), "runs": _runs(broker.process)} for broker in running.brokers]
    if as_json:
        print_json({"running": True, "data": str(directory.path), **running.as_json(), "brokers": rows})
    elif not rows:
        click.echo(f"process {running.process} is starting or stopping the brokers of {directory.path}")
    else:
        title = f"{directory.path}  process {running.process}  since {running.since}\nbootstrap {running.bootstrap}"
        print_rows(rows, as_json=False, title=title)
    sys.exit(0 if rows and all(row["runs"] for row in rows) else _SOME_ARE_DOWN)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
