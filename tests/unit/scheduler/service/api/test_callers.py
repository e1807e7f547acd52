"""Who calls: what is believed, and what is refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from multidict import CIMultiDict

from agent.decide.following import WAIT_SECONDS
from certs.ports import ApiError, Object
from ledger.domain.errors import InputError
from scheduler.service.api.callers import (
    AGENTS_SECONDS,
    JUNK_MAX,
    NOBODY,
    REMEMBERED_SECONDS,
    Caller,
    Callers,
    HeaderRule,
    UnknownCallerError,
    read_rule,
)
from scheduler.service.api.remembered import AT_ONCE, TooManyError

RULE = HeaderRule(
    authority=b"PEM",
    names=frozenset({"front-proxy"}),
    users=("x-remote-user",),
    groups=("x-remote-group",),
    uids=("x-remote-uid",),
    prefixes=("x-remote-extra-",),
)
ANNA = ("X-Remote-User", "anna")
PROXY = ("front-proxy",)
TOKEN = ("Authorization", "Bearer good")
Pairs = Sequence[tuple[str, str]]


class Reviews:
    """An API server that knows the token `good`."""

    def __init__(self, **user: object) -> None:
        self.asked: list[Object] = []
        self.away = False
        self.now = 0.0
        self.user: Mapping[str, Any] = user or {"username": "sa", "groups": ["g"]}

    async def create(self, path: str, body: Object) -> Object:
        """Review a token."""
        assert path == "/apis/authentication.k8s.io/v1/tokenreviews"
        self.asked.append(body)
        await asyncio.sleep(0)
        if self.away:
            raise ApiError("the API did not answer")
        good = body["spec"]["token"].startswith(("good", "agent"))
        return {"status": {"authenticated": True, "user": self.user} if good else {}}

    async def read(self, path: str) -> Object | None:
        """Nobody reads."""
        raise AssertionError(path)

    async def replace(self, path: str, body: Object) -> Object:
        """Nobody writes."""
        raise AssertionError(path, body)

    async def patch(self, path: str, operations: Sequence[Object]) -> Object:
        """Nobody writes."""
        raise AssertionError(path, operations)

    async def remove(self, path: str) -> None:
        """Nobody deletes."""
        raise AssertionError(path)


def who(
    *headers: tuple[str, str],
    names: tuple[str, ...] = (),
    rule: HeaderRule = RULE,
    reviews: Reviews | None = None,
) -> Caller:
    """Ask once who calls."""
    reviews = reviews or Reviews()
    callers = Callers(reviews, lambda: reviews.now)
    callers.rule = rule
    return asyncio.run(callers.who(CIMultiDict(headers), names))


def test_kube_apiserver_says_who_calls_in_headers() -> None:
    """User, every group in order, UID, and extra with its key decoded."""
    caller = who(
        ANNA,
        ("X-Remote-Group", "ml"),
        ("x-remote-group", "system:authenticated"),
        ("X-Remote-Uid", "u-1"),
        ("X-Remote-Extra-Authentication.kubernetes.io%2fNode-Name", "gpu-a"),
        names=PROXY,
    )

    assert caller == Caller(
        user="anna",
        groups=("ml", "system:authenticated"),
        uid="u-1",
        extra=(("authentication.kubernetes.io/node-name", ("gpu-a",)),),
        how="request-header",
    )


def test_a_header_counts_in_any_letter_case() -> None:
    """HTTP has no case in names; a user's name has."""
    assert who(("x-ReMoTe-UsEr", "Anna"), names=PROXY).user == "Anna"


def test_headers_are_those_that_the_cluster_names() -> None:
    """The first of several that the cluster allows."""
    rule = HeaderRule(authority=b"PEM", users=("x-user", "x-remote-user"))
    assert who(("X-User", "anna"), names=("anybody",), rule=rule).user == "anna"


@pytest.mark.parametrize(
    ("headers", "names", "rule"),
    [
        pytest.param([ANNA], (), RULE, id="without a certificate"),
        pytest.param([ANNA], ("anna",), RULE, id="of a certificate whose name is not allowed"),
        pytest.param([ANNA], ("Front-Proxy",), RULE, id="of a name in another letter case"),
        pytest.param([ANNA], ("x", "front-proxy"), RULE, id="of a certificate with two names"),
        pytest.param([ANNA], PROXY, NOBODY, id="before the cluster named an authority"),
        pytest.param([("X-Remote-User", "")], PROXY, RULE, id="of an empty user"),
        pytest.param([("X-Remote-User", "  ")], PROXY, RULE, id="of a user of blanks"),
        pytest.param([("X-Remote-Group", "system:masters")], PROXY, RULE, id="of a group alone"),
        pytest.param([("X-Remote-Extra-A", "b")], PROXY, RULE, id="of extra alone"),
        pytest.param([ANNA, ("x-remote-user", "root")], PROXY, RULE, id="of two users"),
        pytest.param([ANNA, ANNA], PROXY, RULE, id="of the same user twice"),
        pytest.param(
            [ANNA, ("X-Remote-Uid", "a"), ("X-Remote-Uid", "b")], PROXY, RULE, id="of two UIDs"
        ),
        pytest.param([ANNA, TOKEN], PROXY, RULE, id="beside a token"),
        pytest.param([ANNA, TOKEN], (), RULE, id="beside a token, without a certificate"),
        pytest.param(
            [("X-Remote-Group", "system:masters"), TOKEN],
            (),
            RULE,
            id="that add a group to a token",
        ),
        pytest.param(
            [ANNA, TOKEN], (), NOBODY, id="beside a token, before the cluster named an authority"
        ),
        pytest.param([ANNA, ("Impersonate-User", "root")], PROXY, RULE, id="of an impersonator"),
        pytest.param([TOKEN, ("impersonate-group", "root")], (), RULE, id="of a token for others"),
        pytest.param([], PROXY, RULE, id="of the API server for nobody"),
        pytest.param([], (), RULE, id="of nobody"),
        pytest.param([("Authorization", "Bearer bad")], (), RULE, id="of an unknown token"),
        pytest.param([("Authorization", "Bearer ")], (), RULE, id="of an empty token"),
        pytest.param([("Authorization", "Basic good")], (), RULE, id="of a password"),
        pytest.param([TOKEN, TOKEN], (), RULE, id="of two tokens"),
        pytest.param([("Authorization", "Bearer " + "x" * 9000)], (), RULE, id="of a huge token"),
    ],
)
def test_nobody_is_believed(headers: Pairs, names: tuple[str, ...], rule: HeaderRule) -> None:
    """Who calls is said once, in one way that is proved, or the answer is 401."""
    with pytest.raises(UnknownCallerError):
        who(*headers, names=names, rule=rule)


def test_a_token_is_whose_the_api_server_says() -> None:
    """With groups, UID and extra."""
    reviews = Reviews(
        username="system:serviceaccount:a:b", groups=["g"], uid="u", extra={"k": ["v"]}
    )
    caller = who(("authorization", "bearer good"), reviews=reviews)

    assert caller == Caller(
        user="system:serviceaccount:a:b", groups=("g",), uid="u", extra=(("k", ("v",)),)
    )


def test_a_token_without_a_user_is_nobodys() -> None:
    """An answer that names nobody proves nothing."""
    with pytest.raises(UnknownCallerError):
        who(TOKEN, reviews=Reviews(username=""))


def test_agents_are_remembered_from_poll_to_poll_all_of_them() -> None:
    """Each asks every 25 s: the API server reviews the tokens of 6,000 nodes once a minute."""
    reviews = Reviews()
    callers = Callers(reviews, lambda: reviews.now, seconds=AGENTS_SECONDS)

    async def main() -> None:
        for _ in range(3):
            for number in range(6_000):
                token = ("authorization", f"bearer agent-{number}")
                await callers.who(CIMultiDict([token]), (), f"10.0.{number // 250}.{number % 250}")
            reviews.now += WAIT_SECONDS - 0.1
        assert len(reviews.asked) == 6_000
        reviews.now += AGENTS_SECONDS
        await callers.who(CIMultiDict([token]), ())
        assert len(reviews.asked) == 6_001

    asyncio.run(main())


def test_many_who_ask_at_once_wait_for_their_turn() -> None:
    """After a restart every agent comes at once: none is refused, and few reviews are open."""

    async def main() -> None:
        reviews = Waiting()
        callers = Callers(reviews, lambda: reviews.now)
        asking = [
            asyncio.create_task(callers.who(bearing(f"agent-{number}"), (), f"at {number}"))
            for number in range(1_000)
        ]
        for _ in range(5):
            await asyncio.sleep(0)
        assert reviews.open == AT_ONCE
        reviews.goes_on.set()
        assert {one.user for one in await asyncio.gather(*asking)} == {"sa"}

    asyncio.run(main())


def test_a_token_is_asked_of_once_in_some_seconds_and_once_for_all_who_wait() -> None:
    """The token's text is kept for no longer than it is asked about."""
    reviews = Reviews()
    callers = Callers(reviews, lambda: reviews.now)

    async def main() -> None:
        headers = CIMultiDict([TOKEN])
        await asyncio.gather(*(callers.who(headers, ()) for _ in range(5)))
        assert len(reviews.asked) == 1
        reviews.now += REMEMBERED_SECONDS - 0.1
        await callers.who(headers, ())
        assert len(reviews.asked) == 1
        reviews.now += 0.2
        await callers.who(headers, ())
        assert len(reviews.asked) == 2

    asyncio.run(main())


def test_an_api_server_that_does_not_answer_makes_nobody_anybody() -> None:
    """It is asked again the next time."""
    reviews = Reviews()
    callers = Callers(reviews, lambda: 0.0)
    reviews.away = True
    with pytest.raises(ApiError):
        asyncio.run(callers.who(CIMultiDict([TOKEN]), ()))
    reviews.away = False
    assert asyncio.run(callers.who(CIMultiDict([TOKEN]), ())).user == "sa"


def test_the_rule_is_what_the_cluster_says() -> None:
    """Lists are JSON in a ConfigMap; names of headers in lower case."""
    data = {
        "requestheader-client-ca-file": "PEM",
        "requestheader-allowed-names": '["front-proxy"]',
        "requestheader-username-headers": '["X-Remote-User"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-uid-headers": '["X-Remote-Uid"]',
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
    }
    assert read_rule({"data": data}) == RULE


@pytest.mark.parametrize(
    "found",
    [None, {}, {"data": {"client-ca-file": "PEM"}}, {"data": {"requestheader-client-ca-file": ""}}],
    ids=["no ConfigMap", "an empty one", "no request-header authority", "an empty authority"],
)
def test_without_an_authority_nobody_is_believed(found: Object | None) -> None:
    """A cluster without request headers has tokens."""
    assert read_rule(found) == NOBODY


@pytest.mark.parametrize("names", ["{", '"x"', "[1]"], ids=["no JSON", "no list", "no names"])
def test_a_rule_that_can_not_be_read_is_none(names: str) -> None:
    """An empty list of names would let every certificate in."""
    data = {"requestheader-client-ca-file": "PEM", "requestheader-allowed-names": names}
    with pytest.raises(InputError, match="requestheader-allowed-names"):
        read_rule({"data": data})


class Waiting(Reviews):
    """An API server that says nothing of tokens that it does not know until it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()
        self.open = 0

    async def create(self, path: str, body: Object) -> Object:
        """Review a token, late if it is nobody's."""
        if body["spec"]["token"] != "good":
            self.open += 1
            await self.goes_on.wait()
            self.open -= 1
        return await super().create(path, body)


def bearing(token: str) -> CIMultiDict[str]:
    """Return the headers of a bearer token."""
    return CIMultiDict([("Authorization", f"Bearer {token}")])


def test_strangers_with_junk_keep_nobody_out() -> None:
    """One address has few reviews open, and all of them leave places for tokens that were good."""

    async def main() -> None:
        reviews = Waiting()
        callers = Callers(reviews, lambda: reviews.now)
        assert (await callers.who(bearing("good"), (), "user")).user == "sa"
        junk = [
            asyncio.create_task(callers.who(bearing(f"junk-{number}"), (), "stranger"))
            for number in range(100)
        ]
        await asyncio.sleep(0)
        assert (await callers.who(bearing("good"), (), "another")).user == "sa", "it is kept"
        reviews.now += REMEMBERED_SECONDS
        asked = len(reviews.asked)
        assert (await callers.who(bearing("good"), (), "stranger")).user == "sa"
        assert len(reviews.asked) == asked + 1
        many = [
            asyncio.create_task(callers.who(bearing(f"more-{number}"), (), f"at {number}"))
            for number in range(100)
        ]
        await asyncio.sleep(0)
        reviews.now += REMEMBERED_SECONDS
        assert (await callers.who(bearing("good"), (), "user")).user == "sa"
        reviews.goes_on.set()
        ends = await asyncio.gather(*junk, *many, return_exceptions=True)
        kinds = Counter(type(each) for each in ends)
        assert kinds == {UnknownCallerError: 108, TooManyError: 92}

    asyncio.run(main())


def test_an_address_with_junk_alone_is_asked_about_seldom() -> None:
    """Whoever was somebody is answered from there all the same, and anybody from elsewhere."""

    async def main() -> None:
        reviews = Reviews()
        callers = Callers(reviews, lambda: reviews.now)
        await callers.who(bearing("good"), (), "gateway")
        refused = Counter[type]()
        for number in range(3 * int(JUNK_MAX)):
            with pytest.raises((UnknownCallerError, TooManyError)) as raised:
                await callers.who(bearing(f"junk-{number}"), (), "gateway")
            refused[raised.type] += 1
        assert refused == {UnknownCallerError: JUNK_MAX, TooManyError: 2 * JUNK_MAX}
        assert len(reviews.asked) == 1 + JUNK_MAX
        reviews.now += REMEMBERED_SECONDS
        assert (await callers.who(bearing("good"), (), "gateway")).user == "sa"
        with pytest.raises(UnknownCallerError):
            await callers.who(bearing("junk"), (), "elsewhere")

    asyncio.run(main())


def test_a_token_that_is_nobodys_any_more_is_a_strangers() -> None:
    """Its owner is not believed for having been somebody."""

    async def main() -> None:
        reviews = Reviews()
        callers = Callers(reviews, lambda: reviews.now)
        await callers.who(bearing("good"), (), "a")
        reviews.user = {}
        reviews.now += REMEMBERED_SECONDS
        for _ in range(2):
            with pytest.raises(UnknownCallerError):
                await callers.who(bearing("good"), (), "a")

    asyncio.run(main())


@pytest.mark.parametrize("token", ["a b", "a\tb", "a{}", '"a"', "=", "a=b", "\u00e9"])
def test_what_can_be_no_token_is_not_asked_about(token: str) -> None:
    """A token has letters, digits and few signs."""
    reviews = Reviews()
    with pytest.raises(UnknownCallerError):
        who(("Authorization", f"Bearer {token}"), reviews=reviews)
    assert not reviews.asked
