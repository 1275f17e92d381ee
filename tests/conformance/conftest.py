"""One ZooKeeper for all of this directory; every broker gets a chroot of its own in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from peers.zookeeper import ZooKeeper

pytest.register_assert_rewrite(
    "cases_records", "cases_offsets", "cases_admin", "cases_tools", "cases_cluster", "cases_cluster_leaders",
    "cases_groups", "cases_groups_admin", "cases_groups_consumers", "cases_groups_members",
    "cases_groups_mixed", "cases_groups_tools", "cases_connect", "cases_frameworks", "cases_kafka_python_cli",
    "cases_kaskade", "group_driver", "cluster_scenes", "tool_runs", "scene",
)  # fmt: skip
"""What the clients play is not in test modules, but its assertions shall show as much."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--target",
        choices=("kafka", "tidelog", "both"),
        default="both",
        help="on which broker the clients play their cases (tests/conformance/clients)",
    )


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server
