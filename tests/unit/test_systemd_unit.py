"""docs/tidelog-broker@.service: systemd takes it, and tidelog understands the command that it runs."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from tests.kits.docskit import ROOT
from tidelog.cli.main import main

UNIT = ROOT / "docs" / "tidelog-broker@.service"
PROGRAM = "/opt/tidelog/bin/tidelog"


def values(name: str) -> list[str]:
    lines = (line.partition("=") for line in UNIT.read_text().splitlines())
    return [value for key, _, value in lines if key == name]


def test_the_command_is_one_of_ours() -> None:
    (command,) = values("ExecStart")
    program, noun, *arguments = shlex.split(command.replace("%i", "2"))
    assert program == PROGRAM
    found = main.get_command(click.Context(main), noun)
    assert found is not None
    given, left, _ = found.make_parser(click.Context(found)).parse_args(arguments)
    assert given == {"file": "/etc/tidelog/broker-2.properties"}
    assert left == []


def test_it_waits_for_a_clean_stop_and_comes_back_after_a_failure() -> None:
    assert values("Type") == ["notify"]
    assert values("Restart") == ["on-failure"]
    assert values("TimeoutStopSec") == ["90s"]
    assert values("LimitNOFILE") == ["65536"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_takes_it(tmp_path: Path) -> None:
    """Unknown keys and sections are warnings, and the status is 0 with them: so nothing may be said at all."""
    program = tmp_path / "tidelog"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(PROGRAM, str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    said = [line for line in (done.stdout + done.stderr).splitlines() if str(tmp_path) in line or UNIT.name in line]
    assert (done.returncode, said) == (0, [])
