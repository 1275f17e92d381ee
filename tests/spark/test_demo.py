"""The demo with few orders, as `make demo` runs it: the proof holds, and does not hold when a count is off."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from examples.demo.ledger import Found, Ledger
from examples.demo.orders import Plan
from examples.orders_demo import conclude, main

pytest.importorskip("pyspark")
pytest.importorskip("yaml")
pytest.importorskip("matplotlib")
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PNG = b"\x89PNG\r\n"


@pytest.mark.minutes
def test_every_acknowledged_order_is_counted_once(tmp_path: Path) -> None:
    orders, png = 100_000, tmp_path / "demo.png"
    words = ["--orders", str(orders), "--rate", "10000", "--master", "local[2]", "--png", str(png)]
    demo = subprocess.run(
        [sys.executable, "-m", "examples.orders_demo", *words], capture_output=True, text=True, timeout=800, check=False
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "every acknowledged order was counted once" in demo.stdout
    assert "kill -9 of broker" in demo.stdout
    assert f"{orders + Plan(orders, 8).too_late + 1:,} acknowledged" in demo.stdout
    assert png.read_bytes().startswith(PNG)


def test_a_count_that_is_off_fails_the_demo() -> None:
    """The negative control, through the function that the real run ends with."""
    console = Console(quiet=True)
    ledger = Ledger({60_000: (2, 300)}, {b"x"}, late=1, closing=1)
    found = Found(5, [(60_000, 2, 300)], [(60_000, 2, 300)], [b"x"], 1)
    assert conclude(console, ledger, found) == 0
    ledger.count(60_000, 1)
    assert conclude(console, ledger, found) == 1


def test_without_java_one_sentence_and_no_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    def never(*_: object) -> int:
        raise AssertionError("nothing may start")

    assert main(["--orders", "1"], run=never) == 1
