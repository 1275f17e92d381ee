"""Power losses, within the fault budget: one broker at a time, and never the last that is in sync.

What was not synced is lost or torn then. The cluster can bear that as long as it can tell who may have lost something:
who has begun a new life since the ISR was written. So while it is not settled which ISRs the broker is out of, nobody
else ends, and a saboteur that knows power losses works alone.
"""

from __future__ import annotations

import asyncio
from functools import partial

from tidelog.controller import nodes
from tidelog.controller.image import PartitionState
from tidelog.coordination.port import NoNodeError
from tidelog.lab.broker import eventually
from tidelog.lab.cluster import TOPIC
from tidelog.lab.faults import SETTLED_S
from tidelog.lab.storms import Storms
from tidelog.types import NO_EPOCH, TopicPartition

_SHORTER_THAN_A_SESSION_S = 2.5


class PowerLosses(Storms):
    """A broker without power comes back at once or late, while the controller is well or not."""

    async def lose_power(self, number: int) -> None:
        await self._until_it_may(number)
        sleeper = self._cluster.controller
        if sleeper not in (0, number) and self._chance.random() < 0.3:
            await asyncio.gather(self._doze(sleeper), self._without_power(number))
        else:
            await self._without_power(number)

    async def lose_power_as_newcomer(self, number: int) -> None:
        """It was away, comes back, and loses power while it catches up; its leader may not reach the controller."""
        await self._until_it_may(number)  # the last in sync would stay in the ISR, and be waited for
        self._cluster[number].kill()
        for index in self._partitions:
            await eventually(partial(self._is_out, number, index), SETTLED_S, f"b{number} has left the ISR of {index}")
        leader, controller = self._a_leader(number), self._cluster.controller
        ends = (f"b{leader}", f"b{controller}")
        is_cut = controller not in (0, leader) and number not in (leader, controller) and self._chance.random() < 0.7
        await self._start_again(number, 2.0)
        if is_cut:
            self._network.cut(*ends)
            # Healed whatever comes of the rest: nobody leaves or joins an ISR whose leader cannot ask the controller.
            await asyncio.gather(self._lose_power_soon(number), self._heal_later(ends))
        else:
            await self._lose_power_soon(number)

    async def _lose_power_soon(self, number: int) -> None:
        await self._pause(1.5, 0)
        await self._until_it_may(number)
        await self._without_power(number)

    async def _heal_later(self, ends: tuple[str, str]) -> None:
        await self._pause(7, 0)
        self._network.heal(*ends)

    async def _doze(self, number: int) -> None:
        """A short sleep, from which a broker wakes up in its session."""
        host = self._cluster[number].host
        host.freeze()
        await self._pause(_SHORTER_THAN_A_SESSION_S)
        host.thaw()

    async def _without_power(self, number: int) -> None:
        disk = self._cluster[number].host.disk
        before = disk.used_bytes
        self._cluster[number].lose_power()
        self._note("lost bytes", before - disk.used_bytes, f"b{number}")
        await self._start_again(number)
        for index in self._partitions:
            await eventually(
                partial(self._is_settled, number, index), SETTLED_S, f"the ISR of {index} knows of b{number}'s new life"
            )

    # The budget

    async def _until_it_may(self, number: int) -> None:
        await eventually(
            lambda: all(self._may_lose_power(number, index) for index in self._partitions),
            SETTLED_S,
            f"b{number} is not the last in sync",
        )

    def _may_lose_power(self, number: int, index: int) -> bool:
        """Somebody else is in sync, has not bounced since, and will stay so even if a change is under way.

        A replica that is being added may be given up at any time, by an administrator who chooses another target.
        """
        state, leader = self._state(index), self._cluster.leader(index)
        view = self._cluster.replicas(index)[leader].leader if leader else None
        if state is None or view is None or state.leader != leader:
            return False
        staying = set(state.isr) & set(view.isr if view.pending_isr is None else view.pending_isr)
        return any(
            other != number and other in staying and self._cluster.is_up(other) and self._is_fit(state, other)
            for other in self._origin(index)
        )

    def _origin(self, index: int) -> tuple[int, ...]:
        """The replicas that were there before the move that is under way, if one is."""
        node = self._cluster.store.tree.get(nodes.topic_path(TOPIC))
        return nodes.decode_topic(TOPIC, node.data).assignments[index].origin

    def _is_fit(self, state: PartitionState, number: int) -> bool:
        """It lives in the life in which it came into the ISR."""
        epoch: int = self._cluster[number].broker.epoch
        return 0 <= epoch <= state.lives.get(number, NO_EPOCH)

    def _is_out(self, number: int, index: int) -> bool:
        state = self._state(index)
        return state is not None and number not in state.isr

    def _is_settled(self, number: int, index: int) -> bool:
        """It has left the ISR, or has come back into it in its new life."""
        state = self._state(index)
        return state is not None and (number not in state.isr or self._is_fit(state, number))

    def _state(self, index: int) -> PartitionState | None:
        partition = TopicPartition(TOPIC, index)
        try:
            node = self._cluster.store.tree.get(nodes.state_path(partition))
        except NoNodeError:
            return None
        return nodes.decode_state(partition, node.data, node.stat.version, node.stat.modified_id)
