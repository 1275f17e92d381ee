"""`tidelog status`: whether `tidelog up` runs the brokers of a directory, and where they are."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from tidelog.cli.data_directory import process_text
from tidelog.cli.output import json_option, print_json, print_rows
from tidelog.cli.up import data_option
from tidelog.wording import counted

if TYPE_CHECKING:
    from tidelog.cli.data_directory import Running

_NOT_RUNNING = 3
_SOME_ARE_DOWN = 1


@click.command()
@data_option
@json_option
def command(data: str, as_json: bool) -> None:
    """Show the brokers of DIR. Status 0: all run; 1: some do not, or not yet; 3: none does."""
    from tidelog.cli.data_directory import DataDirectory

    directory = DataDirectory(data)
    known, running, by_hand = directory.brokers, directory.running(), directory.by_hand()
    if running is None and not by_hand:
        if as_json:
            print_json({"running": False, "data": str(directory.path), "brokers": []})
        else:
            has = f"it has {counted(known, 'broker')}; " if known else ""
            click.echo(f"nothing is running in {directory.path}; {has}`tidelog up --data {directory.path}` starts them")
        sys.exit(_NOT_RUNNING)
    supervised = () if running is None else running.brokers
    brokers = sorted({broker.broker: broker for broker in (*supervised, *by_hand)}.values())
    rows = [{**broker._asdict(), "runs": _runs(broker.process)} for broker in brokers]
    bootstrap = ",".join(broker.address for broker in brokers)
    if as_json:
        told = {"process": None, "since": None} if running is None else running.as_json()
        print_json({"running": True, "data": str(directory.path), **told, "bootstrap": bootstrap, "brokers": rows})
    elif not rows:
        assert running is not None
        click.echo(f"{process_text(running.process)} is starting or stopping the brokers of {directory.path}")
    else:
        print_rows(rows, as_json=False, title=f"{directory.path}  {_who_runs(running)}\nbootstrap {bootstrap}")
    is_whole = all(row["runs"] for row in rows) and (supervised or len(rows) >= known)
    sys.exit(0 if rows and is_whole else _SOME_ARE_DOWN)


def _who_runs(running: Running | None) -> str:
    if running is None:
        return "without `tidelog up`"
    if not running.brokers:
        return f"{process_text(running.process)} is starting or stopping brokers"
    return f"{process_text(running.process)}  since {running.since}"


def _runs(process: int) -> bool:
    if process <= 0:  # it has its lock, and cannot be asked from this container
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
