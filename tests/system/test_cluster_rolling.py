"""All brokers are restarted one after the other under load, and clients notice nothing but a pause."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kits.processclusterkit import BROKERS, HOMES, process_cluster

BETWEEN = 100
"""Acknowledgements in each partition between two restarts."""


@pytest.mark.long
@pytest.mark.parametrize("home", HOMES)
def test_a_rolling_restart(tmp_path: Path, home: str) -> None:
    with process_cluster(tmp_path, home) as cluster:
        load = cluster.load()
        for number in BROKERS:
            load.wait_for_more(BETWEEN)
            assert cluster[number].stop() == 0
            load.wait_for_more(BETWEEN)
            cluster.restart(number)
            cluster.wait_for_isr(BROKERS)
        load.wait_for_more(BETWEEN)
        print(f"{home}: longest pause {max(load.longest_gap_s.values()):.2f} s")
        cluster.check(load)
