"""
Who calls: a user with groups, by one of two ways, and by no other.

Rule: design section 2: kube-apiserver names them in headers, which are believed over a client
certificate of its request-header authority alone. Direct callers show a bearer token. Both ways at
once are refused, and so is impersonation.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, Protocol
from urllib.parse import unquote

from certs.ports import Object, Objects
from ledger.domain.errors import InputError
from ledger.domain.resources import CALLER_CREDENTIAL_ID
from scheduler.service.api.remembered import Remembered, TooManyError
from scheduler.service.budgets import Budgets, put_newest

AUTHENTICATION: Final = (
    "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
)
REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
REMEMBERED_SECONDS: Final = 10.0
AGENTS_SECONDS: Final = 60.0
"""So long for agents, each of which asks every 25 s: 6,000 reviews a minute of as many nodes."""
TOKEN_MAX: Final = 8 * 1024
PROVED_SECONDS: Final = 3_600.0
"""A token that was somebody's so lately is not a stranger's; kubelet renews one in that time."""
PROVED_MAX: Final = 16_384
"""Tokens: one for each node's agent, and some for people."""
JUNK_MAX: Final = 64.0
JUNK_SECONDS: Final = 1.0
"""So many tokens of an address may be nobody's at once, and one more in so many seconds."""

_BEARER: Final = "bearer"
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, 2.1
_IMPERSONATE: Final = "impersonate-"
_USUAL_NAMES: Final = ("x-remote-user", "x-remote-group", "x-remote-uid")
_USUAL_PREFIX: Final = "x-remote-extra-"

Way = Literal["request-header", "token"]


class UnknownCallerError(Exception):
    """Nobody knows who calls, or they say it in two ways: status 401."""


class Headers(Protocol):
    """The headers of a request; names in any letter case."""

    def getall(self, key: str, default: Sequence[str]) -> Sequence[str]:
        """Return every value of a header, in order."""

    def keys(self) -> Any:  # noqa: ANN401 - a view of names, of which there may be the same twice
        """Return the names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls; `extra` is what else their authenticator says, such as a Pod's node."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    how: Way = "token"

    @property
    def identity(self) -> Caller:
        """Return who it is, whichever of their tokens they show; a Pod's are its own."""
        extra = tuple(one for one in self.extra if one[0] != CALLER_CREDENTIAL_ID)
        return replace(self, extra=extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderRule:
    """
    Whose word in headers is believed.

    Attributes:
        authority: as PEM; None = nobody's.
        names: common names of the certificates, any where it is empty.
        users, groups, uids: names of headers in lower case, the first that is there counts; of
            groups all of them.
        prefixes: what the names of extra headers begin with, in lower case.
    """

    authority: bytes | None = None
    names: frozenset[str] = frozenset()
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    uids: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()


NOBODY: Final = HeaderRule()


def read_rule(found: Object | None) -> HeaderRule:
    """
    Return what the ConfigMap `extension-apiserver-authentication` says; nobody without one.

    Raises:
        InputError: it can't be read; with its field.
    """
    data = (found or {}).get("data") or {}
    authority = str(data.get("requestheader-client-ca-file") or "")
    if not authority.strip():
        return NOBODY
    return HeaderRule(
        authority=authority.encode(),
        names=frozenset(_names(data, "requestheader-allowed-names")),
        users=_lower(data, "requestheader-username-headers"),
        groups=_lower(data, "requestheader-group-headers"),
        uids=_lower(data, "requestheader-uid-headers"),
        prefixes=_lower(data, "requestheader-extra-headers-prefix"),
    )


class Callers:
    """
    Tells who calls; `rule` says whose headers are believed, and is set when that changes.

    Args:
        seconds: how long it is remembered whose a token is; that it is nobody's, 10 s.
    """

    def __init__(
        self,
        api: Objects,
        monotonic: Callable[[], float],
        seconds: float = REMEMBERED_SECONDS,
    ) -> None:
        self.rule = NOBODY
        self._api = api
        self._monotonic = monotonic
        self._known: Remembered[bytes, Caller | None] = Remembered(
            monotonic, seconds=seconds, kept_max=PROVED_MAX, asked_max=PROVED_MAX
        )
        self._strange: Remembered[bytes, Caller | None] = Remembered(
            monotonic, seconds=REMEMBERED_SECONDS
        )
        self._proved: dict[bytes, float] = {}  # digest of a token -> when it was somebody's
        self._junk = Budgets(monotonic, burst=JUNK_MAX, seconds=JUNK_SECONDS)

    async def who(self, headers: Headers, common_names: Sequence[str], address: str = "") -> Caller:
        """
        Return who calls.

        Args:
            address: where the connection comes from.
            common_names: of the client certificate, verified by the authority of `rule` and by no
                other; empty without one.

        Raises:
            UnknownCallerError: they say it not at all, wrongly, or in two ways.
            ApiError, TooManyError: the API server can't be asked now.
        """
        if any(str(name).lower().startswith(_IMPERSONATE) for name in headers.keys()):  # noqa: SIM118
            raise UnknownCallerError("nobody is taken for somebody else here: ask kube-apiserver")
        token = _token(headers)
        said = self._named(headers)
        if not said:
            if token is None:
                raise UnknownCallerError("who calls? give a bearer token, or ask kube-apiserver")
            return await self._by_token(token, address)
        if not self._is_believed(common_names):
            raise UnknownCallerError(
                f"{said[0]} is believed of kube-apiserver's own certificate alone"
            )
        if token is not None:
            raise UnknownCallerError("a bearer token beside headers: who calls is said twice")
        return self._by_headers(headers)

    def _is_believed(self, common_names: Sequence[str]) -> bool:
        if self.rule.authority is None or len(common_names) != 1:
            return False
        return not self.rule.names or common_names[0] in self.rule.names

    def _named(self, headers: Headers) -> list[str]:
        names = {*self.rule.users, *self.rule.groups, *self.rule.uids, *_USUAL_NAMES}
        prefixes = (*self.rule.prefixes, _USUAL_PREFIX)
        each = (str(name).lower() for name in headers.keys())  # noqa: SIM118 - no mapping
        return sorted(name for name in each if name in names or name.startswith(prefixes))

    def _by_headers(self, headers: Headers) -> Caller:
        users = [one for name in self.rule.users for one in headers.getall(name, ())]
        if len(users) != 1 or not users[0].strip():
            fact = "a user and one alone must be named"
            raise UnknownCallerError(f"{fact}: headers={', '.join(self.rule.users)}")
        uids = [one for name in self.rule.uids for one in headers.getall(name, ())]
        if len(uids) > 1:
            raise UnknownCallerError("a user has one UID")
        extra: dict[str, list[str]] = {}
        for name in dict.fromkeys(str(each).lower() for each in headers.keys()):  # noqa: SIM118
            prefix = next((each for each in self.rule.prefixes if name.startswith(each)), None)
            if prefix is not None:
                key = unquote(name.removeprefix(prefix)).lower()
                extra.setdefault(key, []).extend(headers.getall(name, ()))
        return Caller(
            user=users[0],
            groups=tuple(one for name in self.rule.groups for one in headers.getall(name, ())),
            uid=uids[0] if uids else "",
            extra=_sorted(extra),
            how="request-header",
        )

    async def _by_token(self, token: str, address: str) -> Caller:
        """
        Return whose token it is.

        Unknown callers can't crowd out users: tokens that were valid lately have open reviews of
        their own, and each address may have few open, and few of invalid tokens.
        """
        digest = hashlib.sha256(token.encode()).digest()  # its text is kept by nobody
        now = self._monotonic()
        if now - self._proved.get(digest, -math.inf) < PROVED_SECONDS:
            caller = await self._known.get(digest, partial(self._review, token), digest)
        elif self._junk.has(address):
            review = partial(self._review_strange, token, address)
            caller = await self._strange.get(digest, review, address)
            if caller is not None:
                self._known.keep(digest, caller, now)
        else:
            raise TooManyError("too many bearer tokens from your address are nobody's: wait")
        if caller is None:
            self._proved.pop(digest, None)
            raise UnknownCallerError("the API server does not know this bearer token")
        put_newest(self._proved, digest, now, PROVED_MAX)
        return caller

    async def _review_strange(self, token: str, address: str) -> Caller | None:
        caller = await self._review(token)
        if caller is None:
            self._junk.take(address)
        return caller

    async def _review(self, token: str) -> Caller | None:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        }
        answer = await self._api.create(REVIEWS, body)
        status = answer.get("status") or {}
        user = status.get("user") or {}
        if status.get("authenticated") is not True or not user.get("username"):
            return None
        return Caller(
            user=str(user["username"]),
            groups=tuple(map(str, user.get("groups") or ())),
            uid=str(user.get("uid") or ""),
            extra=_sorted(user.get("extra") or {}),
            how="token",
        )


def _token(headers: Headers) -> str | None:
    """Return the bearer token of a request; None without one. Raises UnknownCallerError."""
    given = headers.getall("authorization", ())
    if not given:
        return None
    scheme, _, token = given[0].strip().partition(" ")
    token = token.strip()
    if len(given) > 1 or scheme.lower() != _BEARER or not _TOKEN.fullmatch(token):
        raise UnknownCallerError("one bearer token is read, and nothing else")
    if len(token) > TOKEN_MAX:
        raise UnknownCallerError(f"the bearer token is too long: bytes_max={TOKEN_MAX}")
    return token


def _sorted(extra: Mapping[str, Sequence[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((str(key), tuple(map(str, extra[key]))) for key in sorted(extra))


def _lower(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(name.lower() for name in _names(data, key))


def _names(data: Mapping[str, Any], key: str) -> list[str]:
    """Return a list that a ConfigMap has as JSON; an absent one is empty."""
    try:
        names = json.loads(data.get(key) or "[]")
    except (TypeError, ValueError) as error:
        raise InputError(
            f"no JSON: {error}", place="extension-apiserver-authentication", field=key
        ) from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError("no list of names", place="extension-apiserver-authentication", field=key)
    return names
