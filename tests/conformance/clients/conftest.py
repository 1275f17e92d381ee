"""Every case on Apache Kafka first, then on tidelog: what passes there has to pass here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cases import Case
from driver import Driver
from ledger import Ledger, Point
from scene import Scene, Stage
from targets import CONTROL, NOT_SERVED_YET, OURS, Servers

_POINT = pytest.StashKey[Point]()
_LEDGER = pytest.StashKey[Ledger]()
_SHOWN_LINES = 12


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "scene" in metafunc.fixturenames:
        wanted = metafunc.config.getoption("--target", default="both")
        targets = [CONTROL, OURS] if wanted == "both" else [wanted]
        metafunc.parametrize("target", targets, scope="session")


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("servers"))
    yield servers
    servers.stop()


@pytest.fixture(scope="session")
def stages() -> dict[str, Stage]:
    """The suite's own client of each server, by its address."""
    return {}


@pytest.fixture(scope="session")
def drivers() -> Iterator[dict[type[Driver], Driver]]:
    """Each is made once: some are processes that are slow to start."""
    made: dict[type[Driver], Driver] = {}
    yield made
    for driver in made.values():
        driver.close()


@pytest.fixture
def scene(
    target: str,
    driver: type[Driver],
    case: Case,
    servers: Servers,
    stages: dict[str, Stage],
    drivers: dict[type[Driver], Driver],
) -> Scene[Any]:
    if (reason := NOT_SERVED_YET.get((target, case.needs))) is not None:
        pytest.skip(reason)
    server = servers.get(target, case.server)
    stage = stages.setdefault(server.bootstrap, Stage(server))
    client = drivers.get(driver) or drivers.setdefault(driver, driver())
    client.bootstrap = server.bootstrap
    return Scene(client, stage, case.id)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if "driver" in parameters and "target" in parameters:
            point = Point(parameters["driver"].name, parameters["case"].id, parameters["target"])
            item.stash[_POINT] = point


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LEDGER] = Ledger()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if _POINT in item.stash:
        scene = getattr(item, "funcargs", {}).get("scene")
        if report.failed and scene is not None:
            lines = scene.stage.server.output().splitlines()[-_SHOWN_LINES:]
            report.sections.append(("the end of the broker's log", "\n".join(lines)))
        item.config.stash[_LEDGER].judge(item.stash[_POINT], report)
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for line in config.stash[_LEDGER].close():
        terminalreporter.write_line(line)
