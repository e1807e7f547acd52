"""Plays whoever has a leaf of the cluster's authority, of another name or of the right one."""

from __future__ import annotations

import json
from typing import Final

from certs.material import KeyPair
from ledger.domain.log.events import RequestRefused
from scheduler.service.api.words import ROOT
from tenure.serving.options import KUBE_API_SERVER
from tenure.serving.scheduling.options import KUBE_SCHEDULER
from tests.support.api_callers import authority
from tests.support.hostile.attack import Attack
from tests.support.hostile.doors import (
    API,
    EXTENDER,
    Doors,
    cluster_authority,
    counted,
    given,
    leaf,
)
from tests.support.hostile.port import NAMES, ask_the_extender, ask_the_webhook, call_of
from tests.support.kube.schedulers import client_leaf
from tests.support.objects import container, pod

OTHER: Final = "a certificate of another name"
SCHEDULER: Final = "kube-scheduler's certificate"
SERVER: Final = "kube-apiserver's certificate"
NODE: Final = "system:node:n0"
PROXY: Final = "front-proxy-client"


def others() -> list[KeyPair]:
    """Return leaves that are not kube-scheduler's: of other names, and of another authority."""
    names = (NODE, KUBE_API_SERVER, KUBE_SCHEDULER.upper(), "system:masters")
    return [*map(leaf, names), client_leaf(authority("another"), KUBE_SCHEDULER)]


def use_the_extender() -> str:
    """Try every verb."""
    doors = Doors()
    doors.cluster.put_pod("late")

    async def act(doors: Doors) -> list[int]:
        return [status for own in others() for status in await ask_the_extender(doors, own=own)]

    return f"{counted(doors.attack(act))}; {doors.bound('late')} Pods bound"


def use_the_gate() -> str:
    """Have a claim of the API server reviewed."""
    doors = Doors()
    own = [one for one in others() if one != leaf(KUBE_API_SERVER)]

    async def act(doors: Doors) -> list[int]:
        real = doors.claim()
        return [(await doors.review(real, given(real), each))[0] for each in own]

    return f"{counted(doors.attack(act))}; {doors.holders()['n2']} cards taken"


def use_the_webhook() -> str:
    """Have invented Pods reviewed."""
    doors = Doors()
    own = [one for one in others() if one != leaf(KUBE_API_SERVER)]

    async def act(doors: Doors) -> list[int]:
        return [status for each in own for status in await ask_the_webhook(doors, each)]

    return f"{counted(doors.attack(act))}; {len(doors.admits.records)} refusals handed on"


def name_somebody_else() -> str:
    """Name a user to `--api` as kube-apiserver's proxy does."""
    doors = Doors()
    doors.who.proxies, doors.who.names = cluster_authority(), (PROXY,)
    headers = {"X-Remote-User": "anna", "X-Remote-Group": "system:masters"}
    path = f"{ROOT}/answers/map"

    async def act(doors: Doors) -> tuple[list[int], int]:
        async def name(own: KeyPair) -> int:
            return (await doors.ask(API, path, method="GET", own=own, headers=headers))[0]

        return [await name(own) for own in others()], await name(leaf(PROXY))

    statuses, known = doors.attack(act)
    return f"{counted(statuses)}; the proxy's own is answered {known}"


async def asked(doors: Doors, verb: str, body: bytes) -> str:
    """Ask with kube-scheduler's certificate, and return the error."""
    status, text = await doors.ask(EXTENDER, f"/{verb}", body, own=leaf(KUBE_SCHEDULER))
    return str(json.loads(text)["Error"]) if status == 200 else f"answered {status}"


def bind_anything() -> str:
    """Bind Pods by wrong names, to nodes that are not there, and twice."""
    doors = Doors()
    doors.cluster.put_pod("late")
    doors.cluster.put_pod("other")
    calls = (
        call_of("other", "n1", uid="uid-late"),
        call_of("late", "n1", namespace="payments"),
        call_of("none", "n1"),
        call_of("late", "none"),
        call_of("p", "n1"),
        call_of("../nodes/n0", "n1", uid="uid-late"),
        call_of("late", "../../pods"),
    )

    async def act(doors: Doors) -> list[str]:
        errors = [await asked(doors, "bind", body) for body in calls]
        await doors.cluster.tasks.all_done()
        return errors

    errors = doors.attack(act)
    refused = len([one for one in errors if one])
    bound = doors.bound("late", "other", "none")
    honest = doors.attack(lambda doors: asked(doors, "bind", call_of("late", "n1")))
    after = "is bound" if doors.bound("late") and not honest else "is not bound"
    return f"{refused} of {len(calls)} refused, {bound} bound; then the Pod itself {after}"


def invent_pods() -> str:
    """Filter Pods of another team that are not there and that no node takes, and bind them."""
    doors = Doors()
    names = [f"x{number}" for number in range(20)]
    before = len(doors.recorded)

    async def act(doors: Doors) -> int:
        bound = 0
        for number, name in enumerate(names):
            limits = {"koordinator.sh/gpu": 50 if number % 2 else 100_000}
            made = pod(container(limits=limits), name=name, uid=f"uid-{name}")
            made["metadata"] |= {
                "namespace": "payments",
                "annotations": {"tenure.sh/admitted": "true"},
            }
            body = json.dumps({"Pod": made, "NodeNames": ["n0", "n1"]}).encode()
            await asked(doors, "filter", body)
            bound += not await asked(doors, "bind", call_of(name, "n1", namespace="payments"))
        await doors.cluster.tasks.all_done()
        await doors.cluster.live.refusing.settle()
        return bound

    bound = doors.attack(act)
    doors.cluster.wait(60)
    events = [one for one in doors.recorded[before:] if isinstance(one, RequestRefused)]
    held = doors.bound(*names)
    return f"{bound} of {len(names)} bound, {held} hold a card; {len(events)} refusals recorded"


def forge_reviews() -> str:
    """Have reviews that no API server sends decided."""
    doors = Doors()
    before, told = len(doors.recorded), len(doors.events())
    forged = [(word, name) for word, names in NAMES.items() for name in names]
    forged += [("name", "none"), ("namespace", "payments"), ("uid", "none")]
    forged += [("resourceVersion", str(10**15))]

    async def act(doors: Doors) -> list[int]:
        real, statuses = doors.claim(), []
        for word, name in forged:
            old = {**real, "metadata": {**real["metadata"], word: name}}
            status, response = await doors.review(old, given(old), leaf(KUBE_API_SERVER))
            statuses.append(status if response is None else response["status"]["code"])
        return statuses

    statuses = doors.attack(act)
    taken, events = doors.holders()["n2"], len(doors.recorded) - before
    more = len(doors.events()) - told
    written = f"{events} events recorded, {more} Events written"
    return f"{counted(statuses)}; {taken} cards taken, {written}"


ATTACKS: Final = (
    Attack(
        who=OTHER,
        what="asks the extender to filter, prioritize, preempt and bind",
        play=use_the_extender,
    ),
    Attack(who=OTHER, what="has a true claim reviewed by the gate", play=use_the_gate),
    Attack(
        who=OTHER,
        what="has a Pod that is not there reviewed by a webhook with `--client-ca`",
        play=use_the_webhook,
    ),
    Attack(who=OTHER, what="names a user to `--api`", play=name_somebody_else),
    Attack(
        who=SCHEDULER,
        what="binds Pods by the name of another, in another namespace, that are not there, that run"
        " elsewhere, and paths for names",
        play=bind_anything,
    ),
    Attack(
        who=SCHEDULER,
        what="asks about 20 Pods of another team that are not there, and binds them",
        play=invent_pods,
    ),
    Attack(
        who=SERVER,
        what="sends reviews with names, versions and claims that no API server has",
        play=forge_reviews,
    ),
)
