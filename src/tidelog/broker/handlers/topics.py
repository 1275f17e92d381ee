"""CreateTopics (19), DeleteTopics (20) and CreatePartitions (37): served by the broker that is controller.

| API              | versions | what they added                                                                    |
|------------------|----------|------------------------------------------------------------------------------------|
| CreateTopics     | 2 - 7    | 2 throttle time; 4 defaults for -1; 5 flexible, the topic in the answer; 7 its id   |
| DeleteTopics     | 1 - 6    | 1 throttle time; 3 TOPIC_DELETION_DISABLED; 4 flexible; 5 messages; 6 by topic id   |
| CreatePartitions | 0 - 3    | 2 flexible; 3 the quota error                                                      |

Each writes what is asked for and then waits, up to the request's timeout, until this broker's metadata shows it: with
leaders, or gone. What takes longer is REQUEST_TIMED_OUT, and happens all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.control.admin import NO_SUCH_ID, Deletion, MorePartitions, TopicResult
from tidelog.broker.control.shell import NotControllerError
from tidelog.broker.pacing import SLICE, Pace
from tidelog.config.resolution import describe_topic
from tidelog.config.topic import NAMES, topic_config
from tidelog.controller.topics import NewTopic, kept_names
from tidelog.errors import ErrorCode
from tidelog.net.channel import Call
from tidelog.wire import ZERO_UUID
from tidelog.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from tidelog.wording import MOST_LISTED, counted, listed, settings_text, shown

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_log = logging.getLogger(__name__)

_DELETION_DISABLED_SINCE = 3
_BY_ID_SINCE = 6
_MOST_OF_MESSAGE = 1_000
"""Characters. A message may repeat names that the client has chosen."""


# CreateTopics


async def create_topics(broker: Broker, request: CreateTopicsRequest, call: Call) -> CreateTopicsResponse:
    twice = _repeated([topic.name for topic in request.topics])
    wanted = [_new_topic(topic) async for topic in Pace(broker.lane).each(request.topics) if topic.name not in twice]
    try:
        results = await broker.topic_admin.create_topics(wanted, validate_only=request.validate_only)
    except NotControllerError as failure:
        return CreateTopicsResponse(
            topics=[
                _failed_creation(TopicResult(name, failure.code, str(failure)))
                async for name in Pace(broker.lane).each(_names(request.topics))
            ]
        )
    if not request.validate_only:
        _tell("created", call, results, _created)
    keep = kept_names(_names(request.topics))
    names = list(dict.fromkeys(map(keep, _names(request.topics))))
    twice, results = dict.fromkeys(map(keep, twice)), await _cut(broker, results, keep)
    is_done, timeout_ms = request.validate_only, request.timeout_ms
    del request, wanted  # while it waits, only the names and the results are needed
    if not is_done:
        results = await _wait(broker, call, results, timeout_ms, lambda result: _has_leaders(broker, result))
    answered = {result.name: result for result in results}
    answered |= {name: _named_twice(name) for name in twice}
    pace = Pace(broker.lane)
    topics = []
    for name in names:
        await pace.spend(1 if answered[name].code else len(NAMES))
        topics.append(_creation(broker, answered[name]))
    return CreateTopicsResponse(topics=topics)


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(assignment.partition_index, assignment.broker_ids) for assignment in topic.assignments],
        [(config.name, config.value) for config in topic.configs],
    )


def _creation(broker: Broker, result: TopicResult) -> CreatableTopicResult:
    plan = result.plan
    if plan is None or result.code:
        return _failed_creation(result)
    entries = describe_topic(topic_config(broker.config, plan.configs), plan.configs, broker.config)
    return CreatableTopicResult(
        name=result.name,
        topic_id=result.topic_id,
        error_message=None,
        num_partitions=len(plan.assignments),
        replication_factor=len(plan.assignments[0].replicas),
        configs=[
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
            )
            for entry in entries
        ],
    )


def _failed_creation(result: TopicResult) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=result.name, topic_id=result.topic_id, error_code=result.code, error_message=result.message, configs=[]
    )


# CreatePartitions


async def create_partitions(broker: Broker, request: CreatePartitionsRequest, call: Call) -> CreatePartitionsResponse:
    twice = _repeated([topic.name for topic in request.topics])
    wanted = [
        MorePartitions(
            topic.name,
            topic.count,
            None if topic.assignments is None else [assignment.broker_ids for assignment in topic.assignments],
        )
        async for topic in Pace(broker.lane).each(request.topics)
        if topic.name not in twice
    ]
    try:
        results = await broker.topic_admin.create_partitions(wanted, validate_only=request.validate_only)
    except NotControllerError as failure:
        results = [TopicResult(topic.name, failure.code, str(failure)) for topic in wanted]
    if not request.validate_only:
        _tell("added partitions to", call, results, _grown)
    keep = kept_names(topic.name for topic in request.topics)
    twice, results = dict.fromkeys(map(keep, twice)), await _cut(broker, results, keep)
    is_done, timeout_ms = request.validate_only, request.timeout_ms
    del request, wanted
    if not is_done:
        results = await _wait(broker, call, results, timeout_ms, lambda result: _has_leaders(broker, result))
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=result.name, error_code=result.code, error_message=result.message)
            async for result in Pace(broker.lane).each([*results, *map(_named_twice, twice)])
        ]
    )


# DeleteTopics


async def delete_topics(broker: Broker, request: DeleteTopicsRequest, call: Call) -> DeleteTopicsResponse:
    by_id = call.version >= _BY_ID_SINCE
    asked = [(t.name, t.topic_id) for t in request.topics] if by_id else [(n, ZERO_UUID) for n in request.topic_names]
    if not broker.controller.is_active:
        return await _all_refused(broker, asked, ErrorCode.NOT_CONTROLLER, f"Broker {broker.id} is not the controller.")
    if not broker.config["delete.topic.enable"]:
        known = call.version >= _DELETION_DISABLED_SINCE
        code = ErrorCode.TOPIC_DELETION_DISABLED if known else ErrorCode.INVALID_REQUEST
        return await _all_refused(broker, asked, code, "Topics are not deleted here: delete.topic.enable is false.")
    keep = kept_names(name for name, _ in asked if name is not None)
    wanted, refused = await _resolve(broker, asked, keep)
    try:
        results = await broker.topic_admin.delete_topics(wanted)
    except NotControllerError as failure:
        return await _all_refused(broker, asked, failure.code, str(failure))
    _tell("began to delete", call, results, _deleted)
    results, timeout_ms = await _cut(broker, results, keep), request.timeout_ms
    deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
    del request, asked, wanted
    results = await _wait(broker, call, results, timeout_ms, lambda result: _is_gone(broker, result))
    gone = [result.name for result in results if not result.code]
    left_s = deadline - asyncio.get_running_loop().time()
    await broker.topic_admin.wait_deleted(gone, left_s, partial(broker.waiting, call))
    responses = [
        DeletableTopicResult(
            name=None if result.code is ErrorCode.UNKNOWN_TOPIC_ID else result.name,
            topic_id=result.topic_id,
            error_code=result.code,
            error_message=result.message,
        )
        async for result in Pace(broker.lane).each(results)
    ]
    return DeleteTopicsResponse(responses=[*responses, *refused])


async def _resolve(
    broker: Broker, asked: Sequence[tuple[str | None, bytes]], keep: Callable[[str], str]
) -> tuple[list[Deletion], list[DeletableTopicResult]]:
    """The topics meant, each once, and the answers for those that mean none."""
    wanted: dict[str, Deletion] = {}
    refused: list[DeletableTopicResult] = []

    def refuse(name: str | None, topic_id: bytes, code: ErrorCode, message: str) -> None:
        shown = None if name is None else keep(name)
        refused.append(DeletableTopicResult(name=shown, topic_id=topic_id, error_code=code, error_message=message))

    async for (name, topic_id), times in Pace(broker.lane).each(Counter(asked).items()):
        if (name is None) == (topic_id == ZERO_UUID):
            refuse(name, topic_id, ErrorCode.INVALID_REQUEST, "Either the topic's name or its id must be given.")
        elif times > 1:
            refuse(name, topic_id, ErrorCode.INVALID_REQUEST, "The topic is named more than once.")
        else:
            found = name if name is not None else broker.topic_admin.name_of(topic_id)
            if found is None:
                refuse(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID, NO_SUCH_ID)
            elif found in wanted:
                refuse(name, topic_id, ErrorCode.INVALID_REQUEST, "The topic is named and given by its id as well.")
            else:
                wanted[found] = Deletion(found, topic_id)
    return list(wanted.values()), refused


async def _all_refused(
    broker: Broker, asked: Sequence[tuple[str | None, bytes]], code: ErrorCode, message: str
) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=message)
            async for name, topic_id in Pace(broker.lane).each(dict.fromkeys(asked))
        ]
    )


# Waiting


async def _cut(broker: Broker, results: Sequence[TopicResult], keep: Callable[[str], str]) -> list[TopicResult]:
    """The results with no more text than is kept while others of the request wait. Only refused names are longer."""
    cut: list[TopicResult] = []
    for start in range(0, len(results), SLICE):
        if start:
            await broker.lane.turn()
        cut += [
            result._replace(name=keep(result.name), message=(result.message or "")[:_MOST_OF_MESSAGE] or None)
            if result.code
            else result
            for result in results[start : start + SLICE]
        ]
    return cut


async def _wait(
    broker: Broker, call: Call, results: Sequence[TopicResult], timeout_ms: int, is_done: Callable[[TopicResult], bool]
) -> list[TopicResult]:
    """The results, with REQUEST_TIMED_OUT for what was not done in time. With no time at all, nothing was."""
    pending = [result for result in results if not result.code]

    def all_done() -> bool:
        """Asked after each update: what is done is not looked at again, so many topics cost no more than one each."""
        while pending and is_done(pending[-1]):
            pending.pop()
        return not pending

    if timeout_ms > 0 and pending:
        await broker.metadata.wait_until(all_done, timeout_ms / 1000, partial(broker.waiting, call))
    return [
        result
        if result.code or (timeout_ms > 0 and is_done(result))
        else result._replace(
            code=ErrorCode.REQUEST_TIMED_OUT, message="It is being done, but was not within the timeout."
        )
        async for result in Pace(broker.lane).each(results)
    ]


def _has_leaders(broker: Broker, result: TopicResult) -> bool:
    topic = broker.metadata.topic(result.name)
    return (
        topic is not None
        and result.plan is not None
        and topic.topic_id == result.topic_id
        and len(topic.partitions) >= len(result.plan.assignments)
        and topic.has_leaders
    )


def _is_gone(broker: Broker, result: TopicResult) -> bool:
    """Another topic of the same name may be there by now."""
    topic = broker.metadata.topic(result.name)
    return topic is None or topic.topic_id != result.topic_id


# The log


def _tell(verb: str, call: Call, results: Sequence[TopicResult], text_of: Callable[[TopicResult], str]) -> None:
    """A line for what a request has led to, and one for what was refused, however many topics it names."""
    if not _log.isEnabledFor(logging.INFO):
        return
    done = [result for result in results if not result.code]
    if done:
        _log.info("%s %s %s: %s", call.sender, verb, counted(len(done), "topic"), listed(done, text_of))
        if len(done) > MOST_LISTED and _log.isEnabledFor(logging.DEBUG):
            for result in done:
                _log.debug("%s %s %s", call.sender, verb, text_of(result))
    refused = [result for result in results if result.code]
    if refused:
        _log.info("%s was refused %s: %s", call.sender, counted(len(refused), "topic"), listed(refused, _refusal))


def _created(result: TopicResult) -> str:
    plan = result.plan
    assert plan is not None
    replicas = len(plan.assignments[0].replicas)
    made = f"{counted(len(plan.assignments), 'partition')}, replication factor {replicas}"
    configs = f", {settings_text(sorted(plan.configs.items()))}" if plan.configs else ""
    return f"{result.name} ({made}{configs})"


def _grown(result: TopicResult) -> str:
    assert result.plan is not None
    return f"{result.name} (now {counted(len(result.plan.assignments), 'partition')})"


def _deleted(result: TopicResult) -> str:
    return result.name


def _refusal(result: TopicResult) -> str:
    return f"{shown(result.name)} ({result.code.name}: {shown(result.message)})"


# Pieces


def _repeated(names: Sequence[str]) -> dict[str, None]:
    return {name: None for name, times in Counter(names).items() if times > 1}


def _names(topics: Sequence[CreatableTopic]) -> list[str]:
    """Each once: a topic has one answer."""
    return list(dict.fromkeys(topic.name for topic in topics))


def _named_twice(name: str) -> TopicResult:
    message = f"Topic '{name}' is in the request more than once."
    return TopicResult(name, ErrorCode.INVALID_REQUEST, message[:_MOST_OF_MESSAGE])
