"""What is said of a batch that a broker has refused."""

from __future__ import annotations

from tidelog.client.errors import BrokerError
from tidelog.client.sequences import OutBatch
from tidelog.errors import ErrorCode, error_code
from tidelog.records.header import Codec, read_header
from tidelog.types import TopicPartition
from tidelog.wire.messages.produce import PartitionProduceResponse

TOO_LARGE = {ErrorCode.MESSAGE_TOO_LARGE: "max.message.bytes", ErrorCode.RECORD_LIST_TOO_LARGE: "segment.bytes"}
"""The settings of a topic that limit the size of a batch."""

_RECORD_ERRORS_TOLD = 3
"""How many of the records that a broker refuses are named in an error."""


def refusal(outcome: PartitionProduceResponse, partition: TopicPartition, batch: OutBatch) -> BrokerError:
    """The broker's reason; if a single record is too large, also its size and the setting to change."""
    said = _said(outcome)
    setting = TOO_LARGE.get(error_code(outcome.error_code))
    if setting is not None and batch.record_count == 1:
        own = f"one record makes a batch of {len(batch.data)} bytes"
        if is_size_refused(outcome, batch):
            own += f", and {setting} of topic {partition.topic} is less"
        elif not said:
            own += f"; {setting} of topic {partition.topic} is less than that, or than what the broker makes of it"
        said = f"{own}; {said}" if said else own
    return BrokerError(outcome.error_code, f"produce to {partition}", said)


def is_size_refused(outcome: PartitionProduceResponse, batch: OutBatch) -> bool:
    """Whether a batch is too large as it was sent, so that any other of its size is too large as well.

    A compressed one may also be refused for what it decompresses to, or for its size after the broker has compressed
    it anew. Brokers of tidelog name the setting; those of Kafka say nothing, and then the reason is not known.
    """
    setting = TOO_LARGE.get(error_code(outcome.error_code))
    if setting is None:
        return False
    return read_header(batch.data).codec is Codec.NONE or setting in (outcome.error_message or "")


def in_doubt(code: ErrorCode, partition: TopicPartition, why: str) -> BrokerError:
    return BrokerError(code, f"produce to {partition}", f"{why}: whether it is written is unknown")


def _said(outcome: PartitionProduceResponse) -> str:
    """Why the broker refuses the batch, and the first of the records that it names."""
    errors = outcome.record_errors
    said = [outcome.error_message or ""]
    said += [
        f"record {error.batch_index}: {error.batch_index_error_message or 'refused'}"
        for error in errors[:_RECORD_ERRORS_TOLD]
    ]
    if len(errors) > _RECORD_ERRORS_TOLD:
        said.append(f"and {len(errors) - _RECORD_ERRORS_TOLD} more records")
    return "; ".join(text for text in said if text)
