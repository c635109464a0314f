"""Errors between Spark and topics; their messages name the option and the way out."""

from __future__ import annotations


class ConnectorError(Exception):
    """The base of all errors of the connector."""


class OptionError(ConnectorError, ValueError):
    """An option of `format("topics")` is missing, unknown or out of bounds."""

    def __init__(self, option: str, complaint: str) -> None:
        super().__init__(option, complaint)
        self.option = option
        self.complaint = complaint

    def __str__(self) -> str:
        return f"option `{self.option}` {self.complaint}"


class NoTable(ConnectorError):
    """`CREATE TABLE … USING topics`: Spark hands the options of such a table over under other names, or not at all."""

    def __str__(self) -> str:
        return (
            "a topic cannot be a table of Spark's catalog, which does not keep the options of this source. Use "
            "CREATE TEMPORARY VIEW name USING topics OPTIONS (subscribe 'topic'), or spark.read.format(\"topics\")"
        )


class SchemaError(ConnectorError, ValueError):
    """Rows of a topic cannot have this schema."""


class DataLost(ConnectorError):
    """Records between two offsets are lost, and the query is set to fail instead of continuing without them."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what}. To continue without them, set the option failOnDataLoss to false"


class MalformedPayload(ConnectorError):
    """A payload does not fit the schema, and `mode` is FAILFAST."""

    def __init__(self, topic: str, seq: int) -> None:
        super().__init__(topic, seq)
        self.topic = topic
        self.seq = seq

    def __str__(self) -> str:
        return f"record {self.seq} of topic {self.topic!r} does not fit the schema (mode is FAILFAST)"


class NeedsDecision(ConnectorError):
    """A pipeline must not run before its operator has decided something; `problem` is a code, the text the choices."""

    def __init__(self, problem: str, choices: str) -> None:
        super().__init__(problem, choices)
        self.problem = problem
        self.choices = choices

    def __str__(self) -> str:
        return self.choices


class ServerFailed(ConnectorError):
    """The server refused or could not be reached."""


class FilesUnreadable(ConnectorError):
    """A data directory, a backup or a bucket cannot be read, or is damaged."""


class RowRefused(ConnectorError):
    """A row that cannot become a record."""
