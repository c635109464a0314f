"""The states of an HTTP/1 connection: a machine for each side, and the table of the allowed transitions.

what the client sends                                    what the server sends

DETECTING ──▶ READING ──▶ UPGRADING ──▶ (handed over)     OPEN ──▶ FINISHING ──┬──▶ LINGERING
    │          │   │          │                            │                   │
    │          ▼   ▼          │                            └───────────────────┴──▶ CLOSING
    ├───────▶ DONE  REFUSED ◀─┘
    └─────────────────▲                                   every state ──▶ CLOSED

The last reply connects the two: once it is written, a client in REFUSED may still be sending, so the server lingers;
otherwise it closes. Any other transition is a bug, and asserts.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Receiving(Enum):
    """What happens to received bytes."""

    DETECTING = "detecting"  # the first bytes distinguish HTTP/1 from HTTP/2; they are kept
    READING = "reading"  # they are parsed into requests
    UPGRADING = "upgrading"  # they may belong to another protocol: the socket is not read until the handler has decided
    DONE = "done"  # they are discarded: the last request of the connection was received
    REFUSED = "refused"  # they are discarded: a request was refused, perhaps while the client is still sending it
    CLOSED = "closed"  # the socket is lost, or belongs to another protocol


class Sending(Enum):
    """What happens to replies."""

    OPEN = "open"  # they are sent in the order of the requests
    FINISHING = "finishing"  # the last one is in the buffer, which is written at the end of the tick
    LINGERING = "lingering"  # all are sent, and EOF; the client gets time to read them before the socket is closed
    CLOSING = "closing"  # the transport writes its buffer and closes
    CLOSED = "closed"  # no client is left to read them


RECEIVING_NEXT: Final = {
    Receiving.DETECTING: (Receiving.READING, Receiving.DONE, Receiving.REFUSED, Receiving.CLOSED),
    Receiving.READING: (Receiving.UPGRADING, Receiving.DONE, Receiving.REFUSED, Receiving.CLOSED),
    Receiving.UPGRADING: (Receiving.REFUSED, Receiving.CLOSED),
    Receiving.DONE: (Receiving.CLOSED,),
    Receiving.REFUSED: (Receiving.CLOSED,),
    Receiving.CLOSED: (),
}

SENDING_NEXT: Final = {
    Sending.OPEN: (Sending.FINISHING, Sending.CLOSING, Sending.CLOSED),
    Sending.FINISHING: (Sending.LINGERING, Sending.CLOSING, Sending.CLOSED),
    Sending.LINGERING: (Sending.CLOSED,),
    Sending.CLOSING: (Sending.CLOSED,),
    Sending.CLOSED: (),
}
