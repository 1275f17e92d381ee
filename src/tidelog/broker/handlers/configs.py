"""Settings of topics and brokers, described and changed.

DescribeConfigs (32): 1 source and synonyms; 2 throttles after answering; 3 type and documentation; 4 flexible.
AlterConfigs (33), which replaces all that was set: 1 throttles after answering; 2 flexible.
IncrementalAlterConfigs (44), which changes single values: 1 flexible.

Any broker answers for topics and for the defaults of all brokers; a broker's own settings only that broker.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tidelog.broker import log_levels
from tidelog.broker.dynamic_config import BROKERS, DEFAULT_ENTITY, TOPICS, Edit, Overrides
from tidelog.broker.handlers.metadata import told_of_the_cluster
from tidelog.broker.pacing import Pace
from tidelog.config import resolution, settings
from tidelog.config.dynamic import Change, Operation, apply_changes, validate_broker
from tidelog.config.errors import ConfigError
from tidelog.config.topic import NAMES, broker_value, validate_topic
from tidelog.config.values import Type, text_of
from tidelog.controller.topics import validate_name
from tidelog.coordination.port import CoordinationError
from tidelog.errors import ErrorCode, TidelogError
from tidelog.net.channel import Call
from tidelog.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
)
from tidelog.wording import MOST_LISTED, listed, shown

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_log = logging.getLogger(__name__)

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
_COST_OF = {TOPIC: len(NAMES), BROKER: len(settings.BROKER), BROKER_LOGGER: 50}
"""Elements of a slice that the description of one resource takes."""


class RefusedError(TidelogError):
    """What one resource of a request is answered with."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message)
        self.code = code


class Resource(NamedTuple):
    """What a change is for."""

    kind: int
    name: str
    times_named: int
    """In the same request; more than once is one too many."""


RawChange: TypeAlias = tuple[str, int, str | None]
"""Name, operation and value as they came."""


# The log


class _Story:
    """One line for the changes of a request: the first few resources, and never a secret."""

    def __init__(self, verb: str, validate_only: bool) -> None:
        self._verb = verb
        self._is_wanted = not validate_only and _log.isEnabledFor(logging.INFO)
        self._changed: list[tuple[Resource, Sequence[RawChange]]] = []

    def add(self, resource: Resource, raw: Sequence[RawChange], code: ErrorCode) -> None:
        if self._is_wanted and code is ErrorCode.NONE:
            self._changed.append((resource, raw))

    def tell(self, call: Call) -> None:
        if self._changed:
            _log.info("%s %s settings of %s", call.sender, self._verb, listed(self._changed, _change_text))
            if len(self._changed) > MOST_LISTED and _log.isEnabledFor(logging.DEBUG):
                for changed in self._changed:
                    _log.debug("%s %s settings of %s", call.sender, self._verb, _change_text(changed))


def _change_text(changed: tuple[Resource, Sequence[RawChange]]) -> str:
    resource, raw = changed
    whose = {TOPIC: "topic", BROKER: "broker", BROKER_LOGGER: "the loggers of broker"}.get(resource.kind, "?")
    name = f"{whose} {shown(resource.name)}" if resource.name else "all brokers"
    changes = listed(raw, lambda change: _raw_text(resource, change), 10) or "nothing is set"
    return f"{name} ({changes})"


def _raw_text(resource: Resource, change: RawChange) -> str:
    name, operation, value = change
    if operation == Operation.DELETE:
        return f"{shown(name)} removed"
    sign = {Operation.APPEND: "+=", Operation.SUBTRACT: "-="}.get(Operation(operation), "=")
    return f"{shown(name)}{sign}{shown(value) if _may_be_shown(resource, name) else '[hidden]'}"


def _may_be_shown(resource: Resource, name: str) -> bool:
    if resource.kind == BROKER_LOGGER:
        return True
    setting = (settings.TOPIC if resource.kind == TOPIC else settings.BROKER).get(name)
    return setting is not None and not setting.sensitive


# Describe


async def describe_configs(broker: Broker, request: DescribeConfigsRequest, call: Call) -> DescribeConfigsResponse:
    """Each resource once, however often it is named for the same keys."""
    pace = Pace(broker.lane)
    results = []
    named: set[tuple[int, str, frozenset[str] | None]] = set()
    async for resource in pace.each(request.resources):
        keys = None if not resource.configuration_keys else frozenset(resource.configuration_keys)
        asked = (resource.resource_type, resource.resource_name, keys)
        if asked in named:
            continue
        named.add(asked)
        await pace.spend(_COST_OF.get(resource.resource_type, 1))
        result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
        result.error_message = ""
        try:
            entries = await _describe(broker, resource, keys)
        except TidelogError as failure:
            result.error_code, result.error_message = _code_of(failure), str(failure)
        else:
            result.configs = [_shown(entry, request) for entry in entries]
        results.append(result)
    return DescribeConfigsResponse(results=results)


async def _describe(
    broker: Broker, resource: DescribeConfigsResource, keys: frozenset[str] | None
) -> list[resolution.Entry]:
    name = resource.resource_name
    if resource.resource_type == TOPIC:
        validate_name(name)
        await told_of_the_cluster(broker)
        if broker.metadata.topic(name) is None:
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        config = await broker.dynamic_config.refresh_topic(name)
        return resolution.describe_topic(config, broker.dynamic_config.topic_overrides(name), broker.config, keys)
    if resource.resource_type == BROKER:
        if not name:
            return resolution.describe_default_broker(broker.config, keys)
        _own_id(broker, name, "Broker id", "expected {} or empty string, but")
        return resolution.describe_broker(broker.config, keys)
    if resource.resource_type == BROKER_LOGGER:
        if not name:
            raise RefusedError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        _own_id(broker, name, "Broker id", "expected {} but")
        return [_logger_entry(*pair) for pair in log_levels.levels().items() if keys is None or pair[0] in keys]
    raise RefusedError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type {resource.resource_type}")


def _logger_entry(name: str, level: str) -> resolution.Entry:
    source = resolution.Source.DYNAMIC_BROKER_LOGGER_CONFIG
    return resolution.Entry(name, level, source, False, False, Type.UNKNOWN, (), None)


def _shown(entry: resolution.Entry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in (entry.synonyms if request.include_synonyms else ())
        ],
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )


# Alter


async def incremental_alter_configs(
    broker: Broker, request: IncrementalAlterConfigsRequest, call: Call
) -> IncrementalAlterConfigsResponse:
    counts = Counter((one.resource_type, one.resource_name) for one in request.resources)
    response = IncrementalAlterConfigsResponse()
    story = _Story("changed", request.validate_only)
    async for one in Pace(broker.lane).each(request.resources, _COST_OF[TOPIC]):
        resource = Resource(one.resource_type, one.resource_name, counts[one.resource_type, one.resource_name])
        raw = [(config.name, config.config_operation, config.value) for config in one.configs]
        code, message = await _outcome(_alter_single(broker, resource, raw, request.validate_only))
        story.add(resource, raw, code)
        response.responses.append(
            IncrementalAlterConfigsResponseAlterConfigsResourceResponse(
                error_code=code, error_message=message, resource_type=resource.kind, resource_name=resource.name
            )
        )
    story.tell(call)
    return response


async def alter_configs(broker: Broker, request: AlterConfigsRequest, call: Call) -> AlterConfigsResponse:
    counts = Counter((one.resource_type, one.resource_name) for one in request.resources)
    response = AlterConfigsResponse()
    story = _Story("replaced", request.validate_only)
    async for one in Pace(broker.lane).each(request.resources, _COST_OF[TOPIC]):
        resource = Resource(one.resource_type, one.resource_name, counts[one.resource_type, one.resource_name])
        raw = [(config.name, int(Operation.SET), config.value) for config in one.configs]
        code, message = await _outcome(_alter_all(broker, resource, raw, request.validate_only))
        story.add(resource, raw, code)
        response.responses.append(
            AlterConfigsResourceResponse(
                error_code=code, error_message=message, resource_type=resource.kind, resource_name=resource.name
            )
        )
    story.tell(call)
    return response


async def _outcome(altering: Coroutine[None, None, None]) -> tuple[ErrorCode, str | None]:
    try:
        await altering
    except TidelogError as failure:
        return _code_of(failure), str(failure)
    return ErrorCode.NONE, None


def _code_of(failure: TidelogError) -> ErrorCode:
    """A coordination that does not answer now may do so later: the client shall try again."""
    return ErrorCode.REQUEST_TIMED_OUT if isinstance(failure, CoordinationError) else failure.code


async def _alter_single(broker: Broker, resource: Resource, raw: Sequence[RawChange], validate_only: bool) -> None:
    """SET, DELETE, APPEND and SUBTRACT on one resource."""
    changes = _changes(resource, raw)
    if resource.kind == BROKER_LOGGER:
        _alter_loggers(broker, resource.name, changes, validate_only)
        return
    await _require_entity(broker, resource)
    if resource.kind == TOPIC:
        table, inherited = settings.TOPIC, {key: text_of(broker_value(broker.config, key)) for key in NAMES}
    else:
        table, inherited = settings.BROKER, {key: text_of(broker.config[key]) for key in settings.BROKER}

    def edit(stored: Overrides) -> dict[str, str]:
        proposed = apply_changes(stored, changes, table, inherited)
        _validate(broker, resource, proposed, [change.name for change in changes])
        return proposed

    await _write(broker, resource, edit, validate_only)


async def _alter_all(broker: Broker, resource: Resource, raw: Sequence[RawChange], validate_only: bool) -> None:
    """Exactly these values from now on, whatever was set before."""
    proposed = {change.name: change.value or "" for change in _changes(resource, raw)}
    await _require_entity(broker, resource)
    _validate(broker, resource, proposed, list(proposed))
    await _write(broker, resource, lambda stored: proposed, validate_only)


async def _write(broker: Broker, resource: Resource, edit: Edit, validate_only: bool) -> None:
    entity = (TOPICS, resource.name) if resource.kind == TOPIC else (BROKERS, resource.name or DEFAULT_ENTITY)
    if validate_only:
        edit(await broker.dynamic_config.stored(*entity))
    else:
        await broker.dynamic_config.alter(*entity, edit)


def _changes(resource: Resource, raw: Sequence[RawChange]) -> list[Change]:
    """Read, once it is clear that nothing is wrong that would be wrong for every kind of resource."""
    if resource.times_named > 1:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    known = [operation.value for operation in Operation]
    odd = [operation for _, operation, _ in raw if operation not in known]
    if odd:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"Unknown config operation {odd[0]}")
    nulls = [key for key, operation, value in raw if value is None and operation != Operation.DELETE]
    if nulls:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(nulls)}")
    if len({key for key, _, _ in raw}) != len(raw):
        raise RefusedError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    return [Change(key, Operation(operation), value) for key, operation, value in raw]


async def _require_entity(broker: Broker, resource: Resource) -> None:
    """A topic that is there, this broker, or the default of all brokers."""
    if resource.kind == BROKER:
        if resource.name:
            _own_id(broker, resource.name, "Node id", "expected {}, but")
        return
    if resource.kind != TOPIC:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.kind}")
    if not resource.name:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    validate_name(resource.name)
    await told_of_the_cluster(broker)
    if broker.metadata.topic(resource.name) is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource.name}' does not exist.")


def _validate(broker: Broker, resource: Resource, proposed: Overrides, changed: Sequence[str]) -> None:
    """Kafka calls a bad value of a broker an invalid request, not an invalid config."""
    if resource.kind == TOPIC:
        validate_topic(proposed, broker.config)
        return
    try:
        validate_broker(proposed, changed, broker.config, own=bool(resource.name))
    except ConfigError as failure:
        raise RefusedError(ErrorCode.INVALID_REQUEST, str(failure)) from failure


def _own_id(broker: Broker, name: str, what: str, expectation: str) -> None:
    """The id of this broker; `expectation` words the complaint about another one."""
    try:
        given = int(name)
    except ValueError:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"{what} must be an integer, but it is: {name}") from None
    if given != broker.id:
        text = f"Unexpected broker id, {expectation.format(broker.id)} received {given}"
        raise RefusedError(ErrorCode.INVALID_REQUEST, text)


def _alter_loggers(broker: Broker, name: str, changes: Sequence[Change], validate_only: bool) -> None:
    _own_id(broker, name, "Node id", "expected {}, but")
    for change in changes:
        if change.operation not in (Operation.SET, Operation.DELETE):
            text = f"{change.operation.name} operation is not allowed for the BROKER_LOGGER resource"
            raise RefusedError(ErrorCode.INVALID_REQUEST, text)
        if change.operation is Operation.DELETE and change.name == log_levels.ROOT:
            raise RefusedError(ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed")
        log_levels.check_level(change.name, change.value if change.operation is Operation.SET else None)
    if validate_only:
        return
    for change in changes:
        log_levels.set_level(change.name, change.value if change.operation is Operation.SET else None)
