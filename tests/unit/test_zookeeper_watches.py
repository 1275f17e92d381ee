"""What a watch missed while its connection was gone, told from the numbers of its node."""

from __future__ import annotations

import pytest
from kazoo.protocol.states import ZnodeStat

from tidelog.coordination.port import Event, EventKind
from tidelog.coordination.zookeeper_watches import LastingWatches, missed_by_children

SEEN = 50


def stat(created: int, modified: int, children: int) -> ZnodeStat:
    return ZnodeStat(created, modified, 0, 0, 0, 0, 0, 0, 0, 0, children)


@pytest.mark.parametrize(
    ("was_there", "now", "missed"),
    [
        (True, stat(10, 50, 90), None),
        (True, stat(10, 51, 10), EventKind.CHANGED),
        (True, None, EventKind.DELETED),
        (True, stat(60, 60, 60), EventKind.DELETED),
        (False, None, None),
        (False, stat(60, 70, 60), EventKind.CREATED),
    ],
)
def test_of_a_node(was_there: bool, now: ZnodeStat | None, missed: EventKind | None) -> None:
    watches = LastingWatches()
    watches.add_seen("/a", lambda event: None, is_there=was_there)
    assert watches.missed_by_node("/a", now, SEEN) is missed


@pytest.mark.parametrize(
    ("now", "missed"),
    [
        (stat(10, 90, 50), None),
        (stat(10, 10, 51), EventKind.CHILDREN),
        (stat(60, 60, 60), EventKind.DELETED),
        (None, EventKind.DELETED),
    ],
)
def test_of_its_children(now: ZnodeStat | None, missed: EventKind | None) -> None:
    assert missed_by_children(now, SEEN) is missed


def test_what_was_heard_of_is_forgotten() -> None:
    watches = LastingWatches()
    watches.add_seen("/a", lambda event: None, is_there=False)
    watches.add_for_children("/b", lambda event: None)
    assert (watches.node_paths(), watches.children_paths()) == (["/a"], ["/b"])
    assert len(watches.take(Event(EventKind.CREATED, "/a"))) == 1
    assert len(watches.take(Event(EventKind.DELETED, "/b"))) == 1
    assert (watches.node_paths(), watches.children_paths()) == ([], [])
    watches.add_seen("/a", lambda event: None, is_there=True)
    assert watches.missed_by_node("/a", None, SEEN) is EventKind.DELETED
