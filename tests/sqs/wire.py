"""SQS requests by hand, in both protocols, signed if there is a key: for tests of what goes over the wire."""

import hashlib
import hmac
import itertools
import json
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from tests.serving import Client, Reply
from topics.api.auth import key_id_of, sqs_secret_of
from topics.api.sqs.signature import Signable, canonical_request, signing_key, string_to_sign

NAMESPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"
REGION = "eu-central-1"

_numbers = itertools.count(1)


def new_name(prefix: str = "sqs") -> str:
    return f"{prefix}-{next(_numbers)}"


class Wire:
    """One connection that speaks SQS."""

    def __init__(self, client: Client, key: str | None = None, *, at_s: float | None = None) -> None:
        self.client = client
        self.key = key
        self.at_s = at_s

    def json(self, operation: str, path: str = "/", **params: Any) -> Any:
        """The result of a call that succeeds."""
        reply = self.send(operation, params, path)
        assert reply.status == 200, reply
        assert reply.headers["content-type"] == "application/x-amz-json-1.0"
        assert reply.headers["x-amzn-requestid"]
        return reply.json

    def error(self, operation: str, **params: Any) -> tuple[int, str]:
        """Status and code of a call that fails; both forms of the code agree with each other."""
        reply = self.send(operation, params)
        assert reply.status >= 400, reply
        assert reply.json["message"]
        assert reply.json["__type"].startswith("com.amazonaws.sqs#")
        code, fault = reply.headers["x-amzn-query-error"].split(";")
        assert fault == ("Sender" if reply.status < 500 else "Receiver")
        return reply.status, code

    def send(self, operation: str, params: Any, path: str = "/", headers: Mapping[str, str] | None = None) -> Reply:
        body = params if isinstance(params, bytes) else json.dumps(params).encode()
        sent = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{operation}"}
        return self.post(path, body, {**sent, **(headers or {})})

    def form(self, fields: Mapping[str, Any], path: str = "/") -> Reply:
        body = urlencode({"Version": "2012-11-05", **fields}).encode()
        return self.post(path, body, {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"})

    def xml(self, action: str, path: str = "/", **fields: Any) -> ET.Element:
        """The result of a call in the older protocol that succeeds."""
        reply = self.form(
            {"Action": action, **{name.replace("__", "."): value for name, value in fields.items()}}, path
        )
        assert reply.status == 200, reply
        assert reply.headers["content-type"] == "text/xml"
        root = ET.fromstring(reply.body)
        assert root.tag == f"{NAMESPACE}{action}Response"
        assert root.findtext(f"{NAMESPACE}ResponseMetadata/{NAMESPACE}RequestId")
        result = root.find(f"{NAMESPACE}{action}Result")
        return root if result is None else result

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        sent = dict(headers)
        if self.key is not None:
            sent = signed(self.client, self.key, path, body, sent, self.at_s)
        return self.client.request("POST", path, body=body, headers=sent)

    def create(self, name: str | None = None, **attributes: str) -> str:
        """The URL of a new queue."""
        return self.json("CreateQueue", QueueName=name or new_name(), Attributes=attributes)["QueueUrl"]


def signed(
    client: Client, key: str, path: str, body: bytes, headers: Mapping[str, str], at_s: float | None = None
) -> dict[str, str]:
    """The headers of a request with its signature."""
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() if at_s is None else at_s))
    sent = {**headers, "Host": f"127.0.0.1:{client.port}", "X-Amz-Date": now}
    pairs = [(name.lower().encode(), value.encode()) for name, value in sent.items()]
    names = sorted(name for name, _ in pairs)
    plain_path, _, query = path.partition("?")
    signable = Signable("POST", plain_path.encode(), query.encode(), dict(pairs), hashlib.sha256(body).hexdigest())
    scope = f"{now[:8]}/{REGION}/sqs/aws4_request"
    text = string_to_sign(now, scope, canonical_request(signable, names))
    signature = hmac.digest(signing_key(sqs_secret_of(key), now[:8], REGION, "sqs"), text, "sha256").hex()
    sent["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={key_id_of(key)}/{scope}, "
        f"SignedHeaders={b';'.join(names).decode()}, Signature={signature}"
    )
    return sent


def texts(element: ET.Element, path: str) -> list[str | None]:
    return [found.text for found in element.findall("/".join(NAMESPACE + step for step in path.split("/")))]


def text(element: ET.Element, path: str) -> str | None:
    return next(iter(texts(element, path)), None)
