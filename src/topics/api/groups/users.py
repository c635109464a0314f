"""Users and their passwords: who may log in, with which role and for which names; only salted scrypt hashes are kept.

    name:role:scrypt$14$8$1$<salt>$<hash>:prefix|prefix         the prefixes may be left out: every name

The numbers are log₂ n, r and p; salt and hash are base64url without padding.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from topics.api.auth import ANY_NAME
from topics.model.encoding import from_base64url, to_base64url
from topics.model.setting_types import WrongSetting
from topics.model.settings import find

ROLES: Final = ("anonymous", "user", "service", "dba", "system")
LOG_N, R, P = 14, 8, 1
LOG_N_MAX, R_MAX, P_MAX = 17, 16, 4
SALT_BYTES, KEY_BYTES = 16, 32


class PasswordHash(NamedTuple):
    log_n: int
    r: int
    p: int
    salt: bytes
    key: bytes

    def fits(self, password: str) -> bool:
        """Slow on purpose; other threads run meanwhile."""
        return hmac.compare_digest(_derive(password, self.log_n, self.r, self.p, self.salt), self.key)


class User(NamedTuple):
    name: str
    role: str
    password: PasswordHash
    prefixes: tuple[str, ...] = ANY_NAME


def hash_password(password: str) -> str:
    salt = secrets.token_bytes(SALT_BYTES)
    key = _derive(password, LOG_N, R, P, salt)
    return f"scrypt${LOG_N}${R}${P}${to_base64url(salt).decode()}${to_base64url(key).decode()}"


def no_password() -> PasswordHash:
    """A hash that no password fits."""
    return PasswordHash(LOG_N, R, P, secrets.token_bytes(SALT_BYTES), secrets.token_bytes(KEY_BYTES))


class UnknownUsers:
    """Hashes for users that do not exist: a login takes as long as that of a user who does, and each time as long."""

    def __init__(self, users: Iterable[User]) -> None:
        never = no_password()
        hashes = [never._replace(log_n=user.password.log_n, r=user.password.r, p=user.password.p) for user in users]
        self._hashes = hashes or [never]
        self._key = secrets.token_bytes(32)

    def password_of(self, name: str) -> PasswordHash:
        """As costly as that of one of the users: which one, only the name decides, in a way that cannot be guessed."""
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), key=self._key).digest()
        return self._hashes[int.from_bytes(digest) % len(self._hashes)]


def parse_users(entries: Sequence[str]) -> dict[str, User]:
    users: dict[str, User] = {}
    for number, entry in enumerate(entries, 1):
        name, _, rest = entry.partition(":")
        role, _, rest = rest.partition(":")
        password, _, prefixes = rest.partition(":")
        if not name or name in users:
            raise _wrong(number, "has no unique name before the first colon")
        if role not in ROLES:
            raise _wrong(number, f"has an unknown role; roles are {', '.join(ROLES)}")
        names = tuple(prefixes.split("|")) if prefixes else ANY_NAME
        if prefixes and "" in names:
            raise _wrong(number, "has an empty prefix, which would match every name")
        users[name] = User(name, role, _parse_hash(password, number), names)
    return users


def _parse_hash(text: str, number: int) -> PasswordHash:
    """Refuses a plain password instead of its hash, without repeating it."""
    try:
        scheme, log_n, r, p, salt, key = text.split("$")
        parsed = PasswordHash(int(log_n), int(r), int(p), from_base64url(salt), from_base64url(key))
    except ValueError:
        raise _wrong(number, "has no hash in the format that `topics hash` prints") from None
    bounded = 1 <= parsed.log_n <= LOG_N_MAX and 1 <= parsed.r <= R_MAX and 1 <= parsed.p <= P_MAX
    if scheme != "scrypt" or not bounded or len(parsed.key) != KEY_BYTES or len(parsed.salt) < SALT_BYTES:
        raise _wrong(number, "has no hash in the format that `topics hash` prints")
    return parsed


def _derive(password: str, log_n: int, r: int, p: int, salt: bytes) -> bytes:
    memory = 256 * (1 << log_n) * r
    secret = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(secret, salt=salt, n=1 << log_n, r=r, p=p, maxmem=memory, dklen=KEY_BYTES)


def _wrong(number: int, reason: str) -> WrongSetting:
    return WrongSetting(f"{find('users').variable}: entry {number} {reason}", setting="users")
