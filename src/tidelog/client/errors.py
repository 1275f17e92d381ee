"""What a client is told when a call does not succeed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tidelog.errors import ErrorCode, TidelogError, error_code
from tidelog.net.calling import CannotConnectError, ConnectionClosedError
from tidelog.types import TopicPartition

_LEAST_RUN = 3
"""So many numbers in a row are named by their first and last."""


class BrokerError(TidelogError):
    """A broker answered with an error; `code` is which, `about` is what it was asked for."""

    def __init__(self, code: int, about: str, message: str | None = None) -> None:
        self.code = error_code(code)
        self.about = about
        self.message = message
        super().__init__(f"{about}: {self.code.name}{f' ({message})' if message else ''}")


class DeadlineError(TidelogError):
    """It did not succeed in the time that was given; the cause is the last failure."""

    code = ErrorCode.REQUEST_TIMED_OUT

    @classmethod
    def of(cls, about: str, patience_ms: float, last: BaseException | str | None, setting: str = "") -> DeadlineError:
        """`last` is the failure before it, or what had not happened yet; `setting` limits the time, if one does."""
        limit = f" ({setting})" if setting else ""
        told = f"; last: {last}" if last is not None else ""
        error = cls(f"{about}: gave up after {seconds(patience_ms)}{limit}{told}")
        error.__cause__ = last if isinstance(last, BaseException) else None
        return error


def seconds(time_ms: float) -> str:
    """As --timeout and people say it: `5 s`, `0.3 s`."""
    return f"{time_ms / 1000:g} s"


def last_cause(failure: BaseException) -> BaseException:
    """What kept a call until its deadline, or the failure itself if no deadline was involved."""
    while isinstance(failure, DeadlineError) and failure.__cause__ is not None:
        failure = failure.__cause__
    return failure


class UnknownTopicError(BrokerError):
    """There is no such topic: more than one answer said so."""

    def __init__(self, topic: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic}", "it does not exist")


def named(partitions: Iterable[TopicPartition]) -> str:
    """`orders-1`, or `partitions 0 to 3, 7 of orders`: all of them, in as few words as it takes."""
    numbers: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        numbers.setdefault(partition.topic, []).append(partition.partition)
    return " and ".join(
        f"{topic}-{of_topic[0]}" if len(of_topic) == 1 else f"partitions {', '.join(_runs(of_topic))} of {topic}"
        for topic, of_topic in numbers.items()
    )


def _runs(numbers: Sequence[int]) -> Iterator[str]:
    """`0 to 3` for 0, 1, 2, 3. The numbers rise."""
    first = 0
    for at in range(1, len(numbers) + 1):
        if at < len(numbers) and numbers[at] == numbers[at - 1] + 1:
            continue
        few = range(first, at) if at - first < _LEAST_RUN else ()
        yield from (str(numbers[one]) for one in few)
        if not few:
            yield f"{numbers[first]} to {numbers[at - 1]}"
        first = at


class CoordinatorError(TidelogError):
    """A broker that coordinates groups does not answer; the message names the partitions that it leads."""

    def __init__(self, failure: TidelogError, partitions: Sequence[TopicPartition]) -> None:
        self.code = failure.code
        told = f"; it should answer for the groups in {named(partitions)}, which it leads" if partitions else ""
        super().__init__(f"{failure}{told}")


class WrongClusterError(TidelogError):
    """A broker of another cluster answered. Its address may have belonged to this cluster before."""

    code = ErrorCode.INCONSISTENT_CLUSTER_ID


def unreachable(failures: Iterable[TidelogError]) -> TidelogError:
    """One error for all addresses that were tried. It is retriable if one of them may answer later.

    It says the same whatever order they were tried in, so that it is told once.
    """
    found = list(failures) or [CannotConnectError("no address of a broker is known")]
    if len(found) == 1:
        return found[0]
    told = "; ".join(sorted(map(str, found)))
    if any(isinstance(failure, ConnectionClosedError) for failure in found):
        return CannotConnectError(f"no broker can be reached: {told}")
    if all(isinstance(failure, WrongClusterError) for failure in found):
        return WrongClusterError(told)
    return next(failure for failure in found if not isinstance(failure, WrongClusterError))


def check(code: int, about: str, message: str | None = None) -> None:
    """BrokerError unless the code says that all went well."""
    if code:
        raise BrokerError(code, about, message)


STALE_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""What may come from metadata that is no longer true: learn anew before trying again."""
