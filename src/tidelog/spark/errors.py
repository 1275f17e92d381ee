"""What a user of format("tidelog") is told: which option is wrong, which data is gone, and which did not come."""

from __future__ import annotations

from tidelog.errors import TidelogError


class OptionError(TidelogError, ValueError):
    """An option, or a column that a sink was given, is not as it must be; `option` is its name."""

    def __init__(self, option: str, message: str) -> None:
        self.option = option
        super().__init__(f"option '{option}': {message}")

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, str]]:
        return OptionError, (self.option, str(self).partition(": ")[2])


class DataLossError(TidelogError):
    """Records that were to be read are gone, and failOnDataLoss says that this ends the query."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Some data may have been missed: it was deleted by retention or with its topic before it was "
            "read. To go on with what is there, set option 'failOnDataLoss' to false."
        )
        self.what = what

    def __reduce__(self) -> tuple[type[DataLossError], tuple[str]]:
        return DataLossError, (self.what,)


class ReadTimeoutError(TidelogError):
    """Records that are there did not come in time. That is no loss: the task fails, whatever failOnDataLoss says."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. No data is lost: its broker is slow or away, and the task can be run again. Option "
            "'kafkaConsumer.pollTimeoutMs' says how long a task waits."
        )
        self.what = what

    def __reduce__(self) -> tuple[type[ReadTimeoutError], tuple[str]]:
        return ReadTimeoutError, (self.what,)
