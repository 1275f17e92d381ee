"""The tree against a model that is slow and plain: whole copies instead of steps back."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.coordination.port import ANY_VERSION, Check, Create, Delete, EventKind, Op, Set
from tidelog.coordination.tree import Tree, name_of, parent_of

PATHS = ["/a", "/b", "/a/x", "/a/y", "/a/x/deep", "/no/parent"]
SESSIONS = 3

paths = st.sampled_from(PATHS)
versions = st.sampled_from([ANY_VERSION, ANY_VERSION, 0, 1, 2])
ops = st.one_of(
    st.builds(Create, paths, st.binary(max_size=3), st.booleans(), st.booleans()),
    st.builds(Set, paths, st.binary(max_size=3), versions),
    st.builds(Delete, paths, versions),
    st.builds(Check, paths, versions),
)
steps = st.one_of(
    st.tuples(st.integers(0, SESSIONS - 1), st.lists(ops, min_size=1, max_size=4)),
    st.tuples(st.integers(0, SESSIONS - 1), st.none()),
)


class Model:
    """Nodes as dicts. An op that fails raises its error's name."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, Any]] = {"/": self.node(b"", 0)}

    @staticmethod
    def node(data: bytes, owner: int) -> dict[str, Any]:
        return {"data": data, "version": 0, "children_version": 0, "owner": owner, "sequence": 0}

    def names(self, path: str) -> list[str]:
        return sorted(name_of(other) for other in self.nodes if other != "/" and parent_of(other) == path)

    def multi(self, session: int, ops: list[Op]) -> str | None:
        before = copy.deepcopy(self.nodes)
        try:
            for op in ops:
                self.apply(session, op)
        except RuntimeError as error:
            self.nodes = before
            return str(error)
        return None

    def apply(self, session: int, op: Op) -> None:
        if isinstance(op, Create):
            self.create(session, op)
            return
        if op.path not in self.nodes:
            raise RuntimeError(f"NoNodeError {op.path}")
        node = self.nodes[op.path]
        if op.version not in (ANY_VERSION, node["version"]):
            raise RuntimeError(f"BadVersionError {op.path}")
        if isinstance(op, Set):
            node["data"] = op.data
            node["version"] += 1
        elif isinstance(op, Delete):
            if self.names(op.path):
                raise RuntimeError(f"NotEmptyError {op.path}")
            del self.nodes[op.path]
            self.nodes[parent_of(op.path)]["children_version"] += 1

    def create(self, session: int, op: Create) -> None:
        parent = self.nodes.get(parent_of(op.path))
        if parent is None:
            raise RuntimeError(f"NoNodeError {op.path}")
        if parent["owner"]:
            raise RuntimeError(f"NoChildrenForEphemeralsError {op.path}")
        path = op.path + (f"{parent['sequence']:010d}" if op.sequential else "")
        if path in self.nodes:
            raise RuntimeError(f"NodeExistsError {path}")
        parent["sequence"] += op.sequential
        parent["children_version"] += 1
        self.nodes[path] = self.node(op.data, session if op.ephemeral else 0)

    def end(self, session: int) -> None:
        for path in [path for path, node in self.nodes.items() if node["owner"] == session]:
            del self.nodes[path]
            self.nodes[parent_of(path)]["children_version"] += 1


def same(tree: Tree, model: Model) -> None:
    for path in {*PATHS, *model.nodes}:
        expected = model.nodes.get(path)
        stat = tree.exists(path)
        assert (stat is None) == (expected is None)
        if expected is not None:
            node = tree.get(path)
            assert node.data == expected["data"]
            assert node.stat.version == expected["version"]
            assert node.stat.children_version == expected["children_version"]
            assert node.stat.owner == expected["owner"]
            assert node.stat.created_id <= node.stat.modified_id <= tree.change_id
            assert tree.children(path) == model.names(path)


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=25))
def test_the_tree_is_as_the_model(story: list[tuple[int, list[Op] | None]]) -> None:
    tree, model = Tree(), Model()
    sessions = [tree.open_session() for _ in range(SESSIONS)]
    for who, ops in story:
        session, change_id = sessions[who], tree.change_id
        before = {path for path in (*PATHS, *model.nodes) if path in model.nodes}
        if ops is None:
            events = tree.end_session(session)
            model.end(session)
            sessions[who] = tree.open_session()
        else:
            outcome = tree.transact(session, ops)
            error = model.multi(session, ops)
            found = outcome.error
            assert (None if found is None else f"{type(found).__name__} {found.path}") == error
            assert tree.change_id == change_id + bool(outcome.events)
            assert len(outcome.results) == (0 if error else len(ops))
            events = outcome.events
        same(tree, model)
        for event in events:
            if event.kind is EventKind.CREATED:
                before.add(event.path)
            elif event.kind is EventKind.DELETED:
                before.remove(event.path)
        assert before == set(model.nodes), "the events tell all that came and went"
    again = Tree.restored(json.loads(json.dumps(tree.snapshot())))
    same(again, model)
    assert again.snapshot() == tree.snapshot()
