"""What administrators ask of the controller: topics and partitions to be made, topics to be deleted.

Only the wish is written here, one topic at a time, as a node: the controller reacts to it as it would if somebody else
had written it. So a controller that dies right after leaves nothing that the next one would not finish (S12.4).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from tidelog.broker.control.shell import ControllerShell
from tidelog.broker.control.term import Term
from tidelog.broker.long_waits import Waits, alone
from tidelog.broker.pacing import Pace, SlowLane
from tidelog.controller import nodes
from tidelog.controller.topics import (
    Defaults,
    NewTopic,
    TopicError,
    TopicPlan,
    check_partition_count,
    existing,
    plan_creation,
    plan_more_partitions,
)
from tidelog.coordination.port import Create, NodeExistsError, Op, Set
from tidelog.errors import ErrorCode, TidelogError
from tidelog.ports import Random
from tidelog.types import BrokerId
from tidelog.wire import ZERO_UUID

_COST_OF_CREATION = 10
"""Elements of a slice that one topic takes."""
_TOGETHER = 20
"""Topics that are worked on in one job of the controller."""

T = TypeVar("T")

NO_SUCH_ID = "There is no topic with this id."


class TopicResult(NamedTuple):
    name: str
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    topic_id: bytes = ZERO_UUID
    """Of the topic that is to be or to go."""
    plan: TopicPlan | None = None
    """The topic as it will be, if all is well."""


class MorePartitions(NamedTuple):
    name: str
    total: int
    """How many there are to be in the end."""
    assignments: Sequence[Sequence[BrokerId]] | None = None


class Deletion(NamedTuple):
    name: str
    topic_id: bytes = ZERO_UUID
    """If it is given, only the topic with this id is deleted."""


class TopicAdmin:
    """Results are per topic and in the order of the requests. NotControllerError if this broker is not controller."""

    def __init__(
        self,
        shell: ControllerShell,
        random: Random,
        defaults: Callable[[], Defaults],
        validate_config: Callable[[Mapping[str, str]], None],
        lane: SlowLane,
    ) -> None:
        self._shell = shell
        self._random = random
        self._defaults = defaults
        self._validate_config = validate_config
        self._lane = lane

    async def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> list[TopicResult]:
        async def create(term: Term, topic: NewTopic) -> TopicResult:
            return await self._create(term, topic, validate_only)

        defaults = self._defaults()
        try:
            check_partition_count(topic.partition_count(defaults) for topic in topics)
        except TopicError as failure:
            return [_refused(topic.name, failure) async for topic in Pace(self._lane).each(topics)]
        return await self._each(topics, create, _COST_OF_CREATION, writes=not validate_only)

    async def create_partitions(
        self, topics: Sequence[MorePartitions], *, validate_only: bool = False
    ) -> list[TopicResult]:
        async def grow(term: Term, topic: MorePartitions) -> TopicResult:
            return await self._grow(term, topic, validate_only)

        known = {} if self._shell.image is None else self._shell.image.topics
        now = {name: len(known[name].assignments) for name, *_ in topics if name in known}
        try:
            check_partition_count([topic.total - now[topic.name] for topic in topics if topic.name in now])
        except TopicError as failure:
            return [_refused(topic.name, failure) async for topic in Pace(self._lane).each(topics)]
        return await self._each(topics, grow, _COST_OF_CREATION, writes=not validate_only)

    async def delete_topics(self, topics: Sequence[Deletion]) -> list[TopicResult]:
        """A topic that is being deleted already is one more to wait for."""
        return await self._each(topics, self._delete, 1)

    async def _each(
        self,
        wanted: Sequence[T],
        work: Callable[[Term, T], Awaitable[TopicResult]],
        cost: int,
        *,
        writes: bool = True,
    ) -> list[TopicResult]:
        """A few in one job of the controller, and other work of it in between.

        A large request waits for its slices of the loop here and not in the controller's task: elections must not wait
        for the requests of clients. What a job has written is in the image before anything else is done.
        """
        pace = Pace(self._lane)
        results: list[TopicResult] = []
        for start in range(0, len(wanted), _TOGETHER):
            together = wanted[start : start + _TOGETHER]
            await pace.spend(cost * len(together))

            async def job(term: Term, together: Sequence[T] = together) -> list[TopicResult]:
                return [await work(term, one) for one in together]

            results += await self._shell.run(job, writes_topics=writes)
        return results

    def name_of(self, topic_id: bytes) -> str | None:
        image = self._shell.image
        return None if image is None else image.name_of(topic_id)

    async def wait_deleted(self, names: Sequence[str], timeout_s: float, waits: Waits = alone) -> None:
        """Until the nodes of the topics are gone, so that they may be made anew at once.

        Not for those with a replica on a dead broker: that may take long, and is nobody's fault.
        """

        left = list(names)

        def over() -> bool:
            """Asked after each event of the controller: what is deleted is not looked at again."""
            while left and self._is_deleted_or_stuck(left[-1]):
                left.pop()
            return not left

        await self._shell.wait_until(over, timeout_s, waits)

    def _is_deleted_or_stuck(self, name: str) -> bool:
        image = self._shell.image
        if image is None or name not in image.topics:
            return True
        return any(not image.is_online(partition, broker) for partition, broker in image.topics[name].replicas())

    async def _create(self, term: Term, topic: NewTopic, validate_only: bool) -> TopicResult:
        try:
            plan = plan_creation(term.controller.image, topic, self._defaults(), self._random, self._validate_config)
            if not validate_only:
                await term.writer.multi(await self._creation(term, plan))
        except NodeExistsError:
            return TopicResult(topic.name, ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
        except TidelogError as failure:
            return _refused(topic.name, failure)
        return TopicResult(topic.name, topic_id=ZERO_UUID if validate_only else plan.topic_id, plan=plan)

    async def _creation(self, term: Term, plan: TopicPlan) -> list[Op]:
        """The config first: whoever sees the topic must find it there. One may be left from a topic of old."""
        path, data = nodes.config_path("topics", plan.name), nodes.encode_config(plan.configs)
        config: Op = Set(path, data) if await term.reader.exists(path) else Create(path, data)
        return [config, Create(nodes.topic_path(plan.name), nodes.encode_topic(plan.topic_id, plan.assignments))]

    async def _grow(self, term: Term, topic: MorePartitions, validate_only: bool) -> TopicResult:
        image = term.controller.image
        try:
            assignments = plan_more_partitions(image, topic.name, topic.total, topic.assignments)
            plan = TopicPlan(topic.name, image.topics[topic.name].topic_id, assignments, {})
            if not validate_only:
                data = nodes.encode_topic(plan.topic_id, assignments)
                await term.writer.multi([Set(nodes.topic_path(topic.name), data)])
                term.reader.forget_topic(topic.name)
        except TidelogError as failure:
            return _refused(topic.name, failure)
        return TopicResult(topic.name, topic_id=plan.topic_id, plan=plan)

    async def _delete(self, term: Term, wanted: Deletion) -> TopicResult:
        """Between the request and this job another topic may have been made under the name."""
        name, image = wanted.name, term.controller.image
        topic = image.topics.get(name)
        if wanted.topic_id != ZERO_UUID and (topic is None or topic.topic_id != wanted.topic_id):
            return TopicResult(name, ErrorCode.UNKNOWN_TOPIC_ID, NO_SUCH_ID, wanted.topic_id)
        try:
            if name not in image.deleting:
                existing(image, name)
                await term.writer.multi([Create(nodes.delete_topic_path(name))])
        except NodeExistsError:
            pass
        except TidelogError as failure:
            return _refused(name, failure)
        return TopicResult(name, topic_id=image.topics[name].topic_id)


def _refused(name: str, failure: TidelogError) -> TopicResult:
    """What the client did wrong is its answer; anything else is the controller's, and ends what it was doing."""
    if isinstance(failure, TopicError) or failure.code is ErrorCode.INVALID_CONFIG:
        return TopicResult(name, failure.code, str(failure))
    raise failure
