"""The race for /controller (S12.1).

Who creates the ephemeral node is controller, and does so in one multi with the bump of /controller_epoch: there is no
moment in which a controller has no epoch of its own. The version of the epoch's node fences its writes from then on.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from tidelog.controller import nodes
from tidelog.coordination.port import (
    BadVersionError,
    Create,
    NodeExistsError,
    NoNodeError,
    Session,
    Set,
    Watch,
)
from tidelog.types import BrokerId, Epoch

_log = logging.getLogger(__name__)

FIRST_EPOCH = 0
"""Of a cluster that has had no controller."""


class Won(NamedTuple):
    epoch: Epoch
    epoch_version: int
    """Of the node /controller_epoch; while it has this version nobody else is controller."""


class Lost(NamedTuple):
    controller: BrokerId | None
    """None if its node cannot be read."""


async def run_for_controller(session: Session, broker_id: BrokerId, timestamp_ms: int, watch: Watch) -> Won | Lost:
    """Try until somebody is controller. `watch` is called when the other one's node changes or goes."""
    while True:
        try:
            node = await session.get(nodes.CONTROLLER, watch)
        except NoNodeError:
            pass
        else:
            if node.stat.owner == session.id:
                # We won without hearing of it: the connection broke before the answer came.
                return await _won_before(session)
            return Lost(_named_in(node.data))
        epoch, version = await _last_epoch(session)
        try:
            await session.multi(
                [
                    Create(nodes.CONTROLLER, nodes.encode_controller(broker_id, timestamp_ms), ephemeral=True),
                    Set(nodes.CONTROLLER_EPOCH, nodes.encode_controller_epoch(epoch + 1), version),
                ]
            )
        except (NodeExistsError, BadVersionError):
            continue
        return Won(epoch + 1, version + 1)


def _named_in(data: bytes) -> BrokerId | None:
    """A node that cannot be read still belongs to its session, so that session's broker is the controller."""
    try:
        return nodes.decode_controller(data)
    except nodes.BadNodeError as failure:
        _log.error("another broker is controller, but its node cannot be read: %s", failure)
        return None


async def holds_controller(session: Session, watch: Watch) -> bool:
    """True if the node is this session's; `watch` is called when that may have changed."""
    stat = await session.exists(nodes.CONTROLLER, watch)
    return stat is not None and stat.owner == session.id


async def _won_before(session: Session) -> Won:
    """Nobody else bumps the epoch while our node is there."""
    node = await session.get(nodes.CONTROLLER_EPOCH)
    return Won(nodes.decode_controller_epoch(node.data), node.stat.version)


async def _last_epoch(session: Session) -> tuple[Epoch, int]:
    while True:
        try:
            node = await session.get(nodes.CONTROLLER_EPOCH)
            return nodes.decode_controller_epoch(node.data), node.stat.version
        except NoNodeError:
            pass
        try:
            await session.create(nodes.CONTROLLER_EPOCH, nodes.encode_controller_epoch(FIRST_EPOCH))
        except NodeExistsError:
            continue
        return FIRST_EPOCH, 0
