"""Limits of failed logins, by user and by address within a minute; and which address a request comes from."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from topics.http.request import Request
from topics.model.errors import Throttled
from topics.model.setting_types import WrongSetting
from topics.model.settings import find

ATTEMPTS_PER_USER_MAX, ATTEMPTS_PER_ADDRESS_MAX = 10, 30
WINDOW_S = 60.0
NAMES_REMEMBERED_MAX = 10_000
# Providers give every customer at least a network of this size.
IPV6_PREFIX_BITS = 64

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class AttemptWindow:
    """The attempts of the last minute for each name; beyond NAMES_REMEMBERED_MAX names, the oldest is forgotten."""

    def __init__(self, attempts_max: int, what: str) -> None:
        self._attempts_max = attempts_max
        self._what = what
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, name: str, now_s: float) -> None:
        times = self._times.get(name)
        while times and times[0] <= now_s - WINDOW_S:
            times.popleft()
        if times and len(times) >= self._attempts_max:
            wait_ms = int((times[0] + WINDOW_S - now_s) * 1000)
            message = f"{self._attempts_max} failed logins {self._what} within a minute; try again later"
            raise Throttled(message, retry_after_ms=wait_ms)

    def add(self, name: str, now_s: float) -> None:
        self._times.setdefault(name, deque()).append(now_s)
        self._times.move_to_end(name)
        if len(self._times) > NAMES_REMEMBERED_MAX:
            self._times.popitem(last=False)

    def remove(self, name: str, time_s: float) -> None:
        times = self._times.get(name)
        if times is not None and time_s in times:
            times.remove(time_s)


class LoginLimits:
    """An attempt counts as failed from before its password is hashed until the password turns out to be right."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._users = AttemptWindow(ATTEMPTS_PER_USER_MAX, "of this user")
        self._addresses = AttemptWindow(ATTEMPTS_PER_ADDRESS_MAX, "from this address")

    def check(self, user: str, address: str) -> None:
        """Raises Throttled. The user is checked first: refusals by user do not count against the address."""
        now_s = self._now_s()
        self._users.check(user, now_s)
        self._addresses.check(address, now_s)

    def begin(self, user: str, address: str) -> float:
        """Count one more attempt, or raise Throttled; returns the time that `forgive` takes."""
        self.check(user, address)
        now_s = self._now_s()
        self._users.add(user, now_s)
        self._addresses.add(address, now_s)
        return now_s

    def forgive(self, user: str, address: str, time_s: float) -> None:
        self._users.remove(user, time_s)
        self._addresses.remove(address, time_s)


class TrustedProxies:
    """Finds the client's address of a request. `X-Forwarded-For` counts only as far as trusted proxies wrote it."""

    def __init__(self, trusted: Sequence[str]) -> None:
        self._trusted = [_network(text) for text in trusted]

    def address_of(self, request: Request) -> str:
        """The client's address; for IPv6, its network."""
        address = _parse(request.peer.rpartition(":")[0])
        if address is None:
            return ""
        for text in reversed(b",".join(request.header_values(b"x-forwarded-for")).decode("latin-1").split(",")):
            if not self._trusts(address):
                break
            # Each proxy appends the address of its own client.
            before = _parse(_without_port(text.strip()))
            if before is None:
                break
            address = before
        if address.version == 6:
            return str(ipaddress.ip_network((address, IPV6_PREFIX_BITS), strict=False))
        return str(address)

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._trusted)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        variable = find("trusted_proxies").variable
        message = f"{variable}: {text!r} is neither an address nor a network like 10.0.0.0/8"
        raise WrongSetting(message, setting="trusted_proxies") from None


def _parse(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _without_port(text: str) -> str:
    """`192.0.2.1:80` and `[2001:db8::1]:80`, as some proxies write them."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
