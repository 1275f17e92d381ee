"""Writing nodes as the controller.

Every write is a multi with a check of /controller_epoch: a controller that has been replaced changes nothing, and
learns of it (FencedError).
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.controller import nodes
from tidelog.controller.events import CreateState, ForgetDeletion, RemoveTopic, UpdateState, UpdateTopic, Write
from tidelog.coordination.port import (
    BadVersionError,
    Check,
    CoordinationError,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    Op,
    OpResult,
    Session,
    Set,
)
from tidelog.errors import ErrorCode, TidelogError
from tidelog.types import TopicPartition

_MOST_OPS = 200
"""In one multi: ZooKeeper takes a request of up to a megabyte."""
_MOST_STATES = _MOST_OPS // 3
"""Each may need the nodes above it."""
_MOST_NAMED = 3
_REFUSALS = (NodeExistsError, BadVersionError, NoNodeError)
"""What a node can answer; anything else concerns the session."""


class FencedError(TidelogError):
    """Another controller has taken over."""

    code = ErrorCode.NOT_CONTROLLER


class RefusedWritesError(CoordinationError):
    """The states of these partitions are not what the image has; all others are written."""

    def __init__(self, refused: dict[TopicPartition, CoordinationError]) -> None:
        super().__init__(", ".join(failure.path for failure in list(refused.values())[:_MOST_NAMED]))
        self.refused = refused


class ControllerWriter:
    """Writes of one term. Any other error than FencedError says that the nodes are not what the image has."""

    def __init__(self, session: Session, epoch_version: int) -> None:
        self._session = session
        self._fence = Check(nodes.CONTROLLER_EPOCH, epoch_version)

    async def apply(self, writes: Sequence[Write]) -> None:
        await self._write_states([write for write in writes if isinstance(write, CreateState | UpdateState)])
        for write in writes:
            if isinstance(write, UpdateTopic):
                data = nodes.encode_topic(write.topic_id, write.assignments)
                await self.multi([Set(nodes.topic_path(write.topic), data)])
            elif isinstance(write, RemoveTopic):
                await self._remove_topic(write.topic)
            elif isinstance(write, ForgetDeletion):
                await self._in_chunks(await self._if_there(nodes.delete_topic_path(write.topic)))

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        """All or nothing, and nothing if this is not the controller any more."""
        try:
            return (await self._session.multi([self._fence, *ops]))[1:]
        except (BadVersionError, NoNodeError) as failure:
            if failure.path == nodes.CONTROLLER_EPOCH:
                raise FencedError("another broker is controller now") from failure
            raise

    async def remove(self, paths: Sequence[str]) -> None:
        """Nodes without children, that nobody else removes."""
        await self._in_chunks([Delete(path) for path in paths])

    async def _write_states(self, writes: Sequence[CreateState | UpdateState]) -> None:
        """Many in one multi. One that fails takes the others with it: then each is written alone."""
        refused: dict[TopicPartition, CoordinationError] = {}
        for start in range(0, len(writes), _MOST_STATES):
            chunk = writes[start : start + _MOST_STATES]
            try:
                await self.multi(await self._state_ops(chunk))
            except _REFUSALS as failure:
                refused |= {chunk[0].partition: failure} if len(chunk) == 1 else await self._write_alone(chunk)
        if refused:
            raise RefusedWritesError(refused)

    async def _write_alone(
        self, writes: Sequence[CreateState | UpdateState]
    ) -> dict[TopicPartition, CoordinationError]:
        refused: dict[TopicPartition, CoordinationError] = {}
        for write in writes:
            try:
                await self.multi(await self._state_ops([write]))
            except _REFUSALS as failure:
                refused[write.partition] = failure
        return refused

    async def _in_chunks(self, ops: Sequence[Op]) -> None:
        for start in range(0, len(ops), _MOST_OPS):
            await self.multi(ops[start : start + _MOST_OPS])

    async def _state_ops(self, writes: Sequence[CreateState | UpdateState]) -> list[Op]:
        ops: list[Op] = []
        there: dict[str, set[str]] = {}
        for write in writes:
            partition, data = write.partition, nodes.encode_state(write.state)
            if isinstance(write, UpdateState):
                ops.append(Set(nodes.state_path(partition), data, write.state.version - 1))
                continue
            if partition.topic not in there:
                there[partition.topic] = await self._partition_nodes(partition, ops)
            if str(partition.partition) not in there[partition.topic]:
                ops.append(Create(nodes.partition_path(partition)))
            ops.append(Create(nodes.state_path(partition), data))
        return ops

    async def _partition_nodes(self, partition: TopicPartition, ops: list[Op]) -> set[str]:
        """Which partitions of its topic have a node; adds the one above them if it is missing."""
        try:
            return set(await self._session.children(nodes.partitions_path(partition.topic)))
        except NoNodeError:
            ops.append(Create(nodes.partitions_path(partition.topic)))
            return set()

    async def _remove_topic(self, topic: str) -> None:
        """The topic's own node goes after its config and before the wish: half done, it is still to be deleted."""
        path = nodes.topic_path(topic)
        ops: list[Op] = await self._below(path)
        ops += await self._if_there(nodes.config_path("topics", topic))
        ops += await self._if_there(path)
        ops += await self._if_there(nodes.delete_topic_path(topic))
        await self._in_chunks(ops)

    async def _below(self, path: str) -> list[Op]:
        """Deletes of all nodes below a path, the deepest first."""
        try:
            names = await self._session.children(path)
        except NoNodeError:
            return []
        ops: list[Op] = []
        for name in names:
            ops += await self._below(f"{path}/{name}")
            ops.append(Delete(f"{path}/{name}"))
        return ops

    async def _if_there(self, path: str) -> list[Op]:
        return [] if await self._session.exists(path) is None else [Delete(path)]
