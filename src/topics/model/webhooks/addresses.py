"""Which addresses webhooks may be sent to: public ones, and those that a setting allows.

A name is not an address: what counts is the address that is connected to, whatever a resolver said before.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Final

from topics.model.setting_types import WrongSetting

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# All that is routed on the public network.
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
# Translators send these on to the IPv4 address in their last 32 bits.
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
# Reserved for protocols and examples; what Python counts as global differs between its versions. And the one public
# address behind which a cloud (Azure) has services for its own machines.
_SPECIAL: Final = tuple(
    ipaddress.ip_network(text)
    for text in (
        "192.0.0.0/24",
        "192.88.99.0/24",
        "100.64.0.0/10",
        "2001::/23",
        "2001:db8::/32",
        "3fff::/20",
        "168.63.129.16/32",
    )
)
_HOST: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?\.?", re.ASCII)


class AddressPolicy:
    """`allow` has host names, whose addresses may be any, and addresses or networks."""

    def __init__(self, allow: Sequence[str] = ()) -> None:
        self._hosts: set[str] = set()
        self._networks: list[Network] = []
        for text in (text.strip().lower() for text in allow):
            try:
                self._networks.append(ipaddress.ip_network(text.strip("[]"), strict=False))
            except ValueError:
                if "/" in text or _HOST.fullmatch(text) is None:
                    raise WrongSetting(
                        f"webhooks_allow has {text!r}: it takes hosts, addresses and networks, like hooks.internal or "
                        "10.1.0.0/16"
                    ) from None
                self._hosts.add(text.rstrip("."))

    def allows(self, host: str, address: str) -> bool:
        """Whether a URL with this host may be connected to at this address."""
        if host.lower().rstrip(".") in self._hosts:
            return True
        try:
            found = reached(ipaddress.ip_address(address.partition("%")[0]))
        except ValueError:
            return False
        return is_public(found) or any(found in network for network in self._networks)


def reached(address: Address) -> Address:
    """The address that packets to this one reach in the end."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        return inner or address
    return address


def is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address not in _UNICAST:
        return False
    if any(address in network for network in _SPECIAL):
        return False
    return address.is_global and not address.is_multicast


def literal_address(host: str) -> Address | None:
    """The address that a host is, if it is not a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
