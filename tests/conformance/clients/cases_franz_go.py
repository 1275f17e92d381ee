"""The tests of franz-go's own that are about groups, let loose on a broker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from cases import Table
from driver import Driver
from scene import Scene
from targets import GROUPS

from peers import franz

TABLE = Table(needs=GROUPS)
_RECORDS = 5000
_TESTS = {
    "TestGroupETL/range",
    "TestGroupETL/cooperative-sticky",
    "TestGroupETL/cooperative-sticky/static",
    "TestGroupSimple/classic",
    "TestIssue523/roundrobin",
    "TestIssue523/sticky",
    "TestUnknownGroupOffsetFetchPinned",
}
_NEW_PROTOCOL = "/848|/.*/848"
"""Tests for the groups of KIP-848."""


class FranzGoTests(Driver):
    name: ClassVar[str] = "franz-go tests"
    lacks: ClassVar[Mapping[str, str]] = {}

    def version(self) -> str:
        return franz.version()


@TABLE.case("Groups", "chains of groups whose members come and go, with all assignors: no record lost, none twice")
def franz_go_groups(scene: Scene[FranzGoTests]) -> None:
    wanted = "|".join(sorted({name.partition("/")[0] for name in _TESTS}))
    printed = franz.run_tests(scene.bootstrap, f"^({wanted})$", _NEW_PROTOCOL, _RECORDS)
    passed = set(re.findall(r"--- PASS: (\S+)", printed))
    assert passed >= _TESTS, printed[-4000:]
    assert "--- FAIL" not in printed
