"""Plays P, a caller who reaches a port and has neither certificate nor token, at every door."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any, Final

from certs.material import KeyPair
from ledger.domain.errors import InputError
from scheduler.service.api.answers import discovery_routes
from scheduler.service.api.words import ROOT
from tenure.query.questions import QUESTIONS
from tests.support.hostile.attack import Attack
from tests.support.hostile.doors import (
    API,
    EXTENDER,
    PROBES,
    VERBS,
    Doors,
    counted,
    given,
)
from tests.support.kube import pods
from tests.support.reviews import review

Json = dict[str, Any]
P: Final = "P"
NODE_PATH: Final = "../../../../../../api/v1/nodes/n0"
NAMES: Final[dict[str, tuple[str, ...]]] = {
    "name": ("UPPER_CASE%zz", NODE_PATH, "a/b", "x" * 254, "", "real\n", "réal"),
    "namespace": ("../nodes", "ML", "", "x" * 64),
    "uid": ("../x", "", "x" * 64),
    "resourceVersion": ("9" * 5_000, str(10**19), "-1", "1.5", "0x1", "", "٢"),
}
"""No object of an API server has these."""
ROUNDS: Final = 100
OTHERS: Final = 256
"""Pods that a review names, as many as the API allows."""


def call_of(name: str, node: str, uid: str = "", namespace: str = "ml") -> bytes:
    """Return the body of a bind."""
    words = {"PodName": name, "PodNamespace": namespace, "PodUID": uid or f"uid-{name}"}
    return json.dumps({**words, "Node": node}).encode()


async def ask_the_extender(doors: Doors, **how: Any) -> list[int]:  # noqa: ANN401 - as `ask` has
    """Try every verb by both protocols; return the statuses."""
    body = call_of("late", "n1")
    return [
        (await doors.ask(EXTENDER, f"/{verb}", body, is_http2=is_http2, **how))[0]
        for is_http2 in (False, True)
        for verb in VERBS
    ]


def use_the_extender() -> str:
    """Try every verb without a certificate, whichever authority callers must have."""
    doors = Doors()
    doors.cluster.put_pod("late")

    async def act(doors: Doors) -> list[int]:
        plain = [
            (await doors.ask(EXTENDER, f"/{verb}", call_of("late", "n1"), is_tls=False))[0]
            for verb in VERBS
        ]
        return [*plain, *await ask_the_extender(doors)]

    statuses = doors.attack(act)
    doors.options = replace(doors.options, client_ca=doors.folder / "clients.crt")
    statuses += doors.attack(act)
    return f"{counted(statuses)}; {doors.bound('late')} Pods bound"


def use_a_closed_gate() -> str:
    """Forge reviews without the API server's certificate."""
    doors = Doors()

    async def act(doors: Doors) -> list[int]:
        real = doors.claim()
        return [(await doors.review(real, given(real, number)))[0] for number in (0, 1)]

    return f"{counted(doors.attack(act))}; {doors.holders()['n2']} cards taken"


def forge_names() -> str:
    """Forge reviews of claims whose names and versions no API server has."""
    doors = Doors(is_open=True)

    async def act(doors: Doors) -> list[int]:
        real, statuses = doors.claim(), []
        for word, names in NAMES.items():
            for name in names:
                old = {**real, "metadata": {**real["metadata"], word: name}}
                statuses.append((await doors.review(old, given(old)))[0])
        return statuses

    before = len(doors.asked)
    statuses = doors.attack(act)
    taken, asked = doors.holders()["n2"], len(doors.asked) - before
    return f"{counted(statuses)}; {taken} cards taken, {asked} paths asked of the API server"


def forge_claims() -> str:
    """Forge reviews of claims that are not there, or not so; then the real one is written."""
    doors = Doors(is_open=True)
    reasons = Counter[str]()

    async def act(doors: Doors) -> None:
        real = doors.claim()
        for words in (
            {"name": "none"},
            {"namespace": "payments"},
            {"uid": "none"},
            {"resourceVersion": str(10**15)},
        ):
            old = {**real, "metadata": {**real["metadata"], **words}}
            status, response = await doors.review(old, given(old))
            assert response is not None, status
            reasons[response["status"]["message"].partition(":")[0]] += 1

    before = len(doors.recorded)
    doors.attack(act)
    doors.cluster.wait(600, step=60)
    taken, events = doors.holders()["n2"], len(doors.recorded) - before
    honest = doors.attack(lambda doors: doors.review(doors.claim(), given(doors.claim())))[1]
    assert honest is not None
    after = "has a card" if honest["allowed"] and doors.holders()["n2"] else "is refused"
    said = ", ".join(f"{count} refused by {reason}" for reason, count in reasons.items())
    return f"{said}; {taken} cards taken, {events} events recorded; then the real claim {after}"


def take_for_others() -> str:
    """Say that a real claim is given a card, and is for invented Pods of another team."""
    doors = Doors(is_open=True)

    async def act(doors: Doors) -> bool:
        real = doors.claim()
        new = given(real)
        new["status"]["reservedFor"] = [
            {"resource": "pods", "name": f"x{number}", "uid": f"x{number}"}
            for number in range(OTHERS)
        ]
        response = (await doors.review(real, new))[1]
        return response is not None and response["allowed"]

    assert doors.attack(act)
    [holding] = doors.claims_of("n2")
    seconds, held = 0, doors.holders()["n2"]
    while doors.claims_of("n2"):
        doors.cluster.wait(1, step=1)
        doors.cluster.live.guard.gate.look_again()
        seconds += 1
    assert not doors.holders()["n2"]
    return f"{held} card held for {seconds} s, then free; {len(holding.consumers)} Pods recorded"


def fill_the_ledger() -> str:
    """Have reviews of a real claim refused, again and again."""
    doors = Doors(is_open=True)
    doors.attack(lambda doors: doors.review(doors.claim(), given(doors.claim())))
    doors.store_claim("late")
    before, told = len(doors.recorded), len(doors.events())

    async def act(doors: Doors) -> int:
        late, refused = doors.claim("late"), 0
        new = given(late)
        for number in range(50):
            name = f"victim-{number}"
            new["status"]["reservedFor"] = [{"resource": "pods", "name": name, "uid": name}]
            response = (await doors.review(late, new))[1]
            refused += response is not None and not response["allowed"]
        return refused

    refused = doors.attack(act)
    doors.cluster.wait(60)
    events, more = len(doors.recorded) - before, len(doors.events()) - told
    return f"{refused} refused; {events} events recorded, {more} Events written"


def grant_again_and_again() -> str:
    """Tell that a real claim gets a card, and then another, on every version that it has."""
    doors = Doors(is_open=True)
    reasons = Counter[str]()

    async def act(doors: Doors) -> None:
        for _ in range(ROUNDS):
            real = doors.claim()
            for number in (0, 1):
                response = (await doors.review(real, given(real, number)))[1]
                assert response is not None
                words = response.get("status", {}).get("message", "granted")
                reasons[words.partition(":")[0]] += 1
            doors.cluster.live.guard.claims.put(real["metadata"]["uid"], doors.claim())
            await doors.cluster.live.guard.gate.settle()

    before = len(doors.recorded)
    doors.attack(act)
    said = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    return f"{said}; {len(doors.recorded) - before} events recorded"


def ask_the_api() -> str:
    """Ask everything that people, agents and webhooks may, with made-up words on who calls."""
    doors = Doors()
    made_up: tuple[dict[str, str], ...] = (
        {},
        {"X-Remote-User": "anna", "X-Remote-Group": "system:masters"},
        {"Impersonate-User": "anna", "Authorization": "Bearer good"},
        {"Authorization": "Basic Z29vZA=="},
        {"Authorization": "Bearer nobodys"},
    )
    asked = [
        *(("GET", f"{ROOT}/answers/{name}") for name in QUESTIONS),
        *(("GET", f"{ROOT}/namespaces/ml/answers/{name}") for name in QUESTIONS),
        *((one.method, one.path.format(namespace="ml", holder="p")) for one in doors.routes()),
    ]

    async def act(doors: Doors) -> list[int]:
        return [
            (await doors.ask(API, path, method=method, headers=headers))[0]
            for headers in made_up
            for method, path in asked
        ]

    return f"{counted(doors.attack(act))}; {doors.bound('p')} Pod holds its card"


def look_around() -> str:
    """Read what is for whoever connects."""
    doors = Doors()
    paths = [one.path for one in discovery_routes()]
    names = (b"n0", b"uid-", b"GPU-", b"real", b"anna")

    async def act(doors: Doors) -> list[tuple[int, bytes]]:
        return [await doors.ask(API, path, method="GET") for path in paths]

    answers = doors.attack(act)
    named = sum(name in body for _, body in answers for name in names)
    return f"{counted([status for status, _ in answers])}; {named} names of the cluster"


def guess_tokens() -> str:
    """Show tokens that are nobody's."""
    doors, path = Doors(), f"{ROOT}/answers/map"

    async def show(token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return (await doors.ask(API, path, method="GET", headers=headers))[0]

    async def act(_: Doors) -> tuple[list[int], int]:
        assert await show("good") == 200
        return [await show(f"guess-{number}") for number in range(70)], await show("good")

    statuses, known = doors.attack(act)
    asked = len({one["spec"].get("token") for one in doors.who.reviewed} - {None, "good"})
    fact = f"{asked} asked of the API server"
    return f"{counted(statuses)}, {fact}; whose token is known is answered {known}"


def use_the_probes() -> str:
    """Ask the plain port for what other doors have, and for its own things by other methods."""
    doors = Doors()
    paths = [f"/{verb}" for verb in VERBS] + ["/claims", f"{ROOT}/answers/map", "/debug/pprof"]

    async def act(doors: Doors) -> list[int]:
        there = [(await doors.ask(PROBES, path))[0] for path in ("/livez", "/readyz", "/metrics")]
        return [*there, *[(await doors.ask(PROBES, path))[0] for path in paths]]

    return f"{counted(doors.attack(act))}"


async def ask_the_webhook(doors: Doors, own: KeyPair | None = None) -> list[int]:
    """Have both hooks decide on a Pod of another team that breaks rules; return the statuses."""
    made = pods.pod("victim", {"koordinator.sh/gpu-core": "150"})
    made["metadata"]["namespace"] = "payments"
    return [(await doors.admit(hook, review(made), own))[0] for hook in ("mutate", "validate")]


def use_the_webhook() -> str:
    """Have invented Pods reviewed."""
    doors = Doors()
    statuses = doors.attack(ask_the_webhook)
    return f"{counted(statuses)}; {len(doors.admits.records)} refusals handed on"


def use_an_open_webhook() -> str:
    """Have invented Pods reviewed by a webhook that asks nobody for a certificate."""
    doors = Doors(is_open=True)
    statuses = doors.attack(ask_the_webhook)
    try:
        replace(doors.hooks, scheduler_api="https://tenure-api.tenure-system.svc")
        after = "they are recorded"
    except InputError as error:
        after = f"with `--scheduler-api` it does not start, for want of `{error.field}`"
    return f"{counted(statuses)}; {after}"


ATTACKS: Final = (
    Attack(
        who=P,
        what="asks the extender to filter, prioritize, preempt and bind, with `--client-ca` and"
        " without, by HTTP/1.1, HTTP/2 and without TLS",
        play=use_the_extender,
    ),
    Attack(who=P, what="forges reviews to a gate with `--gate-client-ca`", play=use_a_closed_gate),
    Attack(
        who=P,
        what="forges reviews to a gate with `--gate-open`: names such as `UPPER_CASE%zz` and"
        f" `{NODE_PATH}`, versions of 5,000 digits",
        play=forge_names,
    ),
    Attack(
        who=P,
        what="forges reviews to a gate with `--gate-open`: claims that are not there, a version of"
        " 10^15",
        play=forge_claims,
    ),
    Attack(
        who=P,
        what="tells a gate with `--gate-open` that a real claim gets a card, for 256 invented Pods",
        play=take_for_others,
    ),
    Attack(
        who=P,
        what="has 50 reviews of a real claim refused by a gate with `--gate-open`, for invented"
        " Pods of that team",
        play=fill_the_ledger,
    ),
    Attack(
        who=P,
        what=f"tells a gate with `--gate-open` {ROUNDS} times that a real claim gets a card, and"
        " then another, so that it ends",
        play=grant_again_and_again,
    ),
    Attack(
        who=P,
        what="asks `--api` all that people, agents and webhooks may, with no word on who calls or"
        " an invented one",
        play=ask_the_api,
    ),
    Attack(who=P, what="reads the discovery documents of `--api`", play=look_around),
    Attack(who=P, what="shows `--api` 70 tokens that are nobody's", play=guess_tokens),
    Attack(
        who=P,
        what="has a Pod of another team that is not there reviewed by a webhook with `--client-ca`",
        play=use_the_webhook,
    ),
    Attack(who=P, what="has it reviewed by a webhook without", play=use_an_open_webhook),
    Attack(who=P, what="asks the port of probes for what other doors have", play=use_the_probes),
)
