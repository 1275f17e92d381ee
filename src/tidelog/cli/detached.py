"""Clusters that run without a terminal: how `up --detach` starts one, and how `down` and `status` find it."""

from __future__ import annotations

import os
import subprocess
import sys

import click

from tidelog.cli.commands import interruptible
from tidelog.cli.data_directory import DataDirectory

_LOG = "up.log"


def start_detached(directory: DataDirectory, arguments: list[str]) -> int:
    """Start `tidelog up` with these arguments in a session of its own, and wait until it is ready or has ended."""
    try:
        directory.make(_LOG)
        log = open(directory.path / _LOG, "ab")  # noqa: SIM115 - closed below
    except OSError as failure:
        raise click.ClickException(f"{directory.path} cannot be used: {failure.strerror}") from failure
    interruptible()
    ready, told = os.pipe()
    with log:
        start = log.tell()
        process = subprocess.Popen(
            (
                sys.executable,
                "-m",
                "tidelog",
                *(word for word in arguments if word != "--detach"),
                "--ready-fd",
                str(told),
            ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(told,),
            start_new_session=True,
        )
    os.close(told)
    try:
        is_ready = bool(os.read(ready, 64))
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise
    said = _said(directory, start)
    if not is_ready:
        click.echo(said, err=True, nl=False)
        status = process.wait() or 1
        if not directory.brokers:  # it has started none
            directory.give_up()
        return status
    click.echo(said.replace("stop: Ctrl-C", f"stop: tidelog down --data {directory.path}"), nl=False)
    return 0


def _said(directory: DataDirectory, start: int) -> str:
    with open(directory.path / _LOG, "rb") as log:
        log.seek(start)
        return log.read().decode("utf-8", "replace")
