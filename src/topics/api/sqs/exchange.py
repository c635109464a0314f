"""One SQS request on its way: who asks, for which queue, and how queues are addressed in the reply."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote

from topics.api.call import Call
from topics.api.sqs.errors import SqsError, missing

# There is one account; other ones in a URL mean the same.
ACCOUNT: Final = "000000000000"
REGION: Final = "us-east-1"
# How much errors show of an address or a name.
SHOWN_CHARS_MAX: Final = 64

_arn = re.compile(r"arn:[^:]*:sqs:[^:]*:[0-9]*:(.+)")


class Exchange:
    """`params` is the decoded request; `home` is the address of this server as the client knows it."""

    __slots__ = ("call", "home", "params", "region")

    def __init__(self, call: Call, params: Any, home: str, region: str) -> None:
        self.call = call
        self.params = params
        self.home = home
        self.region = region

    @property
    def queue(self) -> str:
        """The name of the queue that the request is about, which its principal may use."""
        url: str | None = self.params.queue_url
        if url is None:
            segments = self.call.request.path_segments
            if len(segments) < 2:
                raise missing("QueueUrl")
            name = segments[-1]
        else:
            name = unquote(url.rstrip("/").rpartition("/")[2])
            if not name:
                raise SqsError(
                    "InvalidAddress", f"The address {url[:SHOWN_CHARS_MAX]!r} is not valid for this endpoint."
                )
        return self.allowed(name)

    def allowed(self, name: str, field: str = "QueueUrl") -> str:
        self.call.principal.check_name(name, field, given=len(name) <= SHOWN_CHARS_MAX)
        return name

    def url_of(self, name: str) -> str:
        return f"{self.home}/{ACCOUNT}/{name}"

    def arn_of(self, name: str) -> str:
        return f"arn:aws:sqs:{self.region}:{ACCOUNT}:{name}"

    def name_of(self, arn: str, field: str) -> str:
        """The queue of an ARN, which the principal may use."""
        found = _arn.fullmatch(arn)
        if found is None:
            raise SqsError("InvalidParameterValue", f"Value {arn[:SHOWN_CHARS_MAX]} for parameter {field} is invalid.")
        return self.allowed(found[1], field)
