"""docs/METRICS.md lists the metrics that there are, and the other pages name none that there are not."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.kits.docskit import PAGES, ROOT
from tidelog.metrics.families import Family

_NAMED = re.compile(r"`((?:kafka_(?:server|network|log|controller|coordinator|cluster|consumergroup)|tidelog)_[a-z_]+)")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_metrics", ROOT / "tools" / "generate_metrics.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def declared(tool: ModuleType) -> list[Family]:
    families: list[Family] = tool.declared()
    return families


def test_page_of_metrics_is_current(tool: ModuleType) -> None:
    assert (ROOT / "docs" / "METRICS.md").read_text() == tool.page(), "run python tools/generate_metrics.py"


def test_a_metric_that_kafka_lacks_has_another_name_than_kafkas(declared: list[Family]) -> None:
    """Kafka's names have a domain and a type with an MBean, written without underscores."""
    kafkas = re.compile(
        r"kafka_(server|network|log|controller|cluster)_[a-z]+_[a-z]+(_total)?"
        r"|kafka_coordinator_group_groupmetadatamanager_[a-z]+"
        r"|kafka_server_socket_server_metrics_connection_count"
        r"|kafka_brokers|kafka_consumergroup_(lag|lag_sum|current_offset|members)|kafka_topic_partitions"
        r"|kafka_topic_partition_((current|oldest)_offset|leader|replicas|in_sync_replica|under_replicated_partition)"
    )
    others = [family.name for family in declared if not kafkas.fullmatch(family.name)]
    assert not [name for name in others if not name.startswith(("tidelog_", "process_", "python_info"))]


def test_names_and_help_have_the_usual_form(declared: list[Family]) -> None:
    for family in declared:
        assert (family.shown_kind == "counter") == family.name.endswith("_total"), family.name
        assert family.help.endswith("."), family.name
        assert family.help[0].isupper() or family.help[0].isdigit(), family.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_other_pages_name_metrics_that_there_are(page: Path, declared: list[Family]) -> None:
    names = {family.name for family in declared}
    assert not {name for name in _NAMED.findall(page.read_text()) if name not in names and not name.endswith("_")}
