"""Every command with odd values: it ends soon, with one sentence where it fails, and never with a traceback."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner

from tests.kits.processkit import broker_process
from tidelog.cli.main import main

NOBODY = "127.0.0.1:1"
DEADLINE_S = 60.0
ONE = {"offsets_topic_replication_factor": "1", "group_initial_rebalance_delay_ms": "0"}

TEXTS = (
    *(
        "",
        " ",
        "-",
        "--",
        "-1",
        "0",
        "1",
        "2",
        "orders",
        "orders:0",
        "a=b",
        "=",
        "a=",
        "retention.ms=x",
        "1,2",
        "1,1",
        ",",
    ),
    *(
        "99999999999",
        "-99999999999",
        str(2**31),
        str(2**63),
        str(-(2**63) - 1),
        "9" * 5000,
        "1e400",
        "nan",
        "inf",
        "-inf",
    ),
    *(
        "\x1b[2J\x07",
        "a\nb",
        "\udcff\udcfe",
        "orders\udcff",
        "\u202e",
        "\u0663",
        "x" * 100_000,
        "é" * 300,
        "{0.__class__}",
    ),
    *(
        "{",
        "[",
        "(",
        "*",
        "%s%n",
        "$(x)",
        "0001-01-01T00:00",
        "9999-12-31T23:59:59+00:00",
        "P99999999999D",
        "1d",
        "10m",
    ),
    *("99999999999999999999d", "[::1]:9092", "h:99999", "h:x", ":1", "a" * 300 + ":1", "NaN:1", "0-99999999999999"),
)
WAITING = {"--follow", "--wait", "--watch", "--step"}
"""Options that say to wait for what may never come."""

TIMES = ("0.1", "0", "-1", "nan", "inf", "1e400", "x", "")
"""For --timeout: a command waits as long as it says for somebody to listen."""

RECORDS = (b"", b"\n\n", b"\xff\xfe\n", b"a\x00b\n", b'{"value": 1}\n', b"[" * 5000 + b"\n", b'{"value": "\\ud800"}\n')

ANSWERS = (b"", b"y\n", b"n\n", b"x\n" * 3)


class Leaf(NamedTuple):
    path: tuple[str, ...]
    command: click.Command


def leaves(group: click.Group, *path: str) -> Iterator[Leaf]:
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, *path, name)
        else:
            yield Leaf((*path, name), command)


class Odd:
    """Makes command lines. All that it draws comes from its seed."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.random = random.Random(seed)
        self._leaves = list(leaves(main))
        self._paths = _odd_paths(directory)

    def line(self) -> list[str]:
        path, command = self.random.choice(self._leaves)
        words: list[str] = []
        optional = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
        chance = self.random.choice((0.1, 0.3, 0.6))
        for option in optional:
            name = option.opts[0]
            if option.required or (name not in WAITING and self.random.random() < chance):
                words += [name] if option.is_flag else [name, self._value(option)]
        arguments = [self._value(param) for param in command.params if isinstance(param, click.Argument)]
        return [*path, *words, *(["--"] if self.random.random() < 0.5 else []), *arguments]

    def _value(self, param: click.Parameter) -> str:
        if isinstance(param.type, click.Choice) and self.random.random() < 0.8:
            return str(self.random.choice(list(param.type.choices)))
        if isinstance(param.type, click.Path) and self.random.random() < 0.8:
            return self.random.choice(self._paths)
        if param.name == "timeout" or "--timeout" in param.opts:
            return self.random.choice(TIMES)
        if self.random.random() < 0.3:
            return "orders"
        if self.random.random() < 0.3:
            return str(self.random.randint(0, 3))
        return self.random.choice(TEXTS)


def _odd_paths(directory: Path) -> list[str]:
    contents = {
        "empty": b"",
        "latin": "größe=ä\n".encode("latin-1"),
        "text": b"a=b\nbroker.id=1\n",
        "numbers.json": b'{"partitions": [{"topic": "orders", "partition": 99999999999, "replicas": [99999999999]}]}',
        "deep.json": b"[" * 100_000,
        "offsets.csv": b"orders,0,99999999999999999999\n",
        "quotes.csv": b'"orders,0\r\x00,"\n' * 10,
        "some.yml": b"name: [\n",
    }
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    (directory / "sub").mkdir()
    names = [
        str(directory / name) for name in (*contents, "sub", "missing", "missing/below", "empty/below", "new\udcff")
    ]
    return [*names, "/proc/x/y", "/dev/null", "", "x" * 300]


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What would run brokers, a server or a simulation for long ends when it would begin."""
    from tidelog.lab import telling

    strips = {}

    def tell_once(story: telling.Story, *, by_epoch: bool) -> object:
        key = (story.name, by_epoch)
        strips[key] = strips.get(key) or told(telling.STORIES["loss"], by_epoch=True)
        return strips[key]

    told = telling.tell
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tidelog.lab.telling.tell", tell_once)
    monkeypatch.setattr("tidelog.cli.supervisor.Supervisor.run", lambda self: 0)
    monkeypatch.setattr("tidelog.cli.detached.start_detached", lambda *_: 0)
    monkeypatch.setattr("tidelog.broker.main.run", lambda *_: 0)
    monkeypatch.setattr("tidelog.cli.broker_log.set_up", lambda *_: None)
    monkeypatch.setattr("tidelog.cli.zookeeper.os.execv", lambda *_: None)
    monkeypatch.setattr("tidelog.cli.lab._one", lambda *_: 0)
    monkeypatch.setattr("tidelog.cli.lab.search", lambda *_, **__: 0)


def check(line: list[str], bootstrap: str, stdin: bytes) -> None:
    began = time.monotonic()
    result = CliRunner().invoke(main, line, input=stdin, env={"TIDELOG_BOOTSTRAP": bootstrap})
    shown = f"{[word[:80] for word in line]}: {result.stderr[-2000:]}"
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(shown) from result.exception
    assert result.exit_code in (0, 1, 2, 3), shown
    assert "Traceback" not in result.stderr, shown
    if result.exit_code == 2:
        assert sum(said.startswith("Error: ") for said in result.stderr.split("\n")) == 1, shown
    if result.exit_code == 1:
        assert result.output.strip(), shown
    assert time.monotonic() - began < DEADLINE_S, shown


def search(directory: Path, seed: int, bootstrap: str, *, count: int, within_s: float) -> int:
    odd = Odd(seed, directory)
    deadline = time.monotonic() + within_s
    done = 0
    while done < count and time.monotonic() < deadline:
        line = odd.line()
        check(line, bootstrap, odd.random.choice(RECORDS if line[0] == "produce" else ANSWERS))
        done += 1
    return done


def test_odd_values_where_nobody_listens(tmp_path: Path) -> None:
    assert search(tmp_path, 1, NOBODY, count=300, within_s=20) >= 50


@pytest.mark.long
def test_many_odd_values(tmp_path: Path) -> None:
    """Half of the time with a broker that answers: what cannot be sent shows only when it is sent."""
    home = tmp_path / "broker"
    home.mkdir()
    files = [tmp_path / name for name in ("alone", "answered")]
    for directory in files:
        directory.mkdir()
    assert search(files[0], 2, NOBODY, count=5000, within_s=25) >= 100
    with broker_process(home, **ONE) as broker:
        bootstrap = f"127.0.0.1:{broker.port}"
        check(["topics", "create", "orders", "--partitions", "3"], bootstrap, b"")
        check(["produce", "orders"], bootstrap, b"1\n2\n3\n")
        assert search(files[1], 3, bootstrap, count=5000, within_s=35) >= 100
