"""Plays a team that may write Pods, claims and annotations in its own namespace, and no other."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping
from itertools import product
from typing import Final
from urllib.parse import urlencode

import jsonpatch

from ledger.domain.annotations.guarded import (
    ADMISSION_ANNOTATIONS,
    ALLOCATION_ANNOTATIONS,
    ALLOCATION_PREFIXES,
)
from ledger.domain.resources import ANNOTATION_DEVICE_ALLOCATED, ANNOTATION_TENURE_ADMITTED
from scheduler.service.api.words import ROOT
from tenure.query.questions import QUESTIONS
from tenure.serving.options import KUBE_API_SERVER
from tests.support.hostile.attack import Attack
from tests.support.hostile.doors import API, Doors, Json, counted, given, leaf
from tests.support.kube import pods
from tests.support.kube.pods import HALF
from tests.support.reviews import review

TEAM: Final = "a team with a namespace of its own"
OWN: Final = "payments"
GANG: Final = "gang.scheduling.koordinator.sh"
TOGETHER: Final = f"{GANG}/groups"
TOKEN: Final = {"Authorization": "Bearer own"}


def said_card(minor: int) -> str:
    """Return the annotation by which a Pod holds a whole card."""
    amounts = {"koordinator.sh/gpu-core": "100"}
    return json.dumps({"gpu": [{"minor": minor, "resources": amounts}]})


def shown(doors: Doors, name: str) -> str:
    """Return in words what a Pod holds."""
    held = ", ".join(f"{percent} % of {card}" for card, percent in doors.shares(name))
    return f"`{name}` holds {held or 'nothing'}"


def forge_at_admission() -> str:
    """Write each annotation that says who holds what, on a new Pod and on one that runs."""
    doors = Doors()
    keys = sorted(ALLOCATION_ANNOTATIONS | {f"{one}forged" for one in ALLOCATION_PREFIXES})
    old = pods.pod("train", HALF)
    old["metadata"]["namespace"] = OWN

    def written(key: str) -> Json:
        return {**old, "metadata": {**old["metadata"], "annotations": {key: "true"}}}

    reviews = [review(written(key)) for key in keys]
    changed = (*keys, *sorted(ADMISSION_ANNOTATIONS))
    reviews += [review(written(key), operation="UPDATE", old=old) for key in changed]

    async def act(doors: Doors) -> list[bool]:
        answers = [
            (await doors.admit("validate", one, leaf(KUBE_API_SERVER)))[1] for one in reviews
        ]
        return [one is not None and one["allowed"] for one in answers]

    allowed = doors.attack(act)
    return f"{allowed.count(False)} of {len(allowed)} refused"


def bear_the_marks() -> str:
    """Create Pods that bear the marks of admission already."""
    doors = Doors()
    values, own = ("true", "forged", "{}", '{"containers":{}}'), leaf(KUBE_API_SERVER)

    async def act(doors: Doors) -> list[str]:
        came = []
        for key, value in product(sorted(ADMISSION_ANNOTATIONS), values):
            made = pods.pod("train", HALF, annotations={key: value})
            made["metadata"]["namespace"] = OWN
            _, response = await doors.admit("mutate", review(made), own)
            assert response is not None
            patch = base64.b64decode(response.get("patch", "W10="))
            made = jsonpatch.apply_patch(made, json.loads(patch))
            honest = "true" if key == ANNOTATION_TENURE_ADMITTED else ""
            stays = made["metadata"]["annotations"].get(key, "") == value != honest
            if response["allowed"]:
                _, response = await doors.admit("validate", review(made), own)
                assert response is not None
            came.append("stays" if stays and response["allowed"] else "refused or replaced")
        return came

    came = Counter(doors.attack(act))
    return f"{came['refused or replaced']} of {came.total()} refused or replaced"


def forge_past_admission() -> str:
    """Write another card on a Pod that runs, while webhook and policies are off."""
    doors = Doors()
    before = doors.shares("p")
    doors.cluster.annotate("p", **{ANNOTATION_DEVICE_ALLOCATED: said_card(1)})
    doors.cluster.wait(100)
    doors.holders()
    [kind] = doors.cluster.kinds
    return (
        f"{kind}; {shown(doors, 'p')}, {'as' if doors.shares('p') == before else 'not as'} before"
    )


def run_past_us() -> str:
    """Create a Pod that names its node and the card of another Pod, while both are off."""
    doors = Doors()
    before = doors.shares("q")
    doors.put_in(OWN, "thief", {ANNOTATION_DEVICE_ALLOCATED: said_card(0)}, node="n1")
    doors.cluster.wait(100)
    count, [kind] = doors.holders()["n1"], doors.cluster.kinds
    after = "as" if doors.shares("q") == before else "not as"
    return f"{kind}; {count} holders: {shown(doors, 'q')}, {after} before, {shown(doors, 'thief')}"


def join_a_gang() -> str:
    """Let Pods say that they are of another team's gang, which then has too few members."""
    doors = Doors()
    about = {"name": "train", "min-available": "3", "waiting-time": "600s"}
    member = {f"{GANG}/{key}": text for key, text in about.items()}
    for name in ("m0", "m1"):
        doors.put_in("ml", name, member)
    for number in range(5):
        doors.put_in(
            OWN, f"x{number}", {**member, **({TOGETHER: '["ml/train"]'} if number else {})}
        )
    early = doors.attack(lambda doors: doors.filter("ml", "m0"))["NodeNames"]
    doors.put_in("ml", "m2", member)

    async def act(doors: Doors) -> tuple[Json, int]:
        late = await doors.filter("ml", "m0")
        got = [(await doors.filter(OWN, f"x{number}"))["NodeNames"] for number in range(5)]
        return late["NodeNames"], len(list(filter(None, got)))

    late, got = doors.attack(act)
    before, after = ("gets a node" if one else "waits" for one in (early, late))
    return f"the gang {before}; with a third member of its own it {after}; {got} of the 5 get one"


def name_a_taken_device() -> str:
    """Have a claim of the own namespace given the card of another team's claim."""
    doors = Doors()
    own = leaf(KUBE_API_SERVER)
    doors.attack(lambda doors: doors.review(doors.claim(), given(doors.claim()), own))
    mine = doors.store_claim("mine", namespace=OWN)
    _, response = doors.attack(lambda doors: doors.review(mine, given(mine), own))
    assert response is not None
    reason, _, words = response["status"]["message"].partition(":")
    [holding] = doors.claims_of("n2")
    named = "names" if "ml/real" in words else "does not name"
    holder = f"{holding.namespace}/{holding.pod_name}"
    return f"refused by {reason}, which {named} that claim; `{holder}` holds the card"


def ask_of_others() -> str:
    """Ask every question about another namespace and about all, and what agents and webhooks do."""
    doors = Doors()
    doors.who.tokens["own"], doors.who.may["mallory"] = "mallory", {OWN}
    places = (f"{ROOT}/answers", f"{ROOT}/namespaces/ml/answers")
    paths = [("GET", f"{place}/{name}") for place in places for name in QUESTIONS]
    paths += [(one.method, one.path.format(namespace="ml", holder="p")) for one in doors.routes()]

    async def act(doors: Doors) -> list[int]:
        return [
            (await doors.ask(API, path, method=method, headers=TOKEN))[0] for method, path in paths
        ]

    return f"{counted(doors.attack(act))}; {doors.bound('p')} Pod holds its card"


def ask_from_within() -> str:
    """Ask about another team's Pods and cards with the right for the own namespace."""
    doors = Doors()
    doors.who.tokens["own"], doors.who.may["mallory"] = "mallory", {OWN}
    asked: list[tuple[str, Mapping[str, str]]] = [("map", {}), ("top", {})]
    for name in ("n0/0", "ml/p"):
        asked += [("who", {"name": name}), ("why", {"name": name})]

    async def tell(place: str, headers: Mapping[str, str]) -> int:
        """Return how many answers tell of what the other team holds."""
        told = 0
        for question, params in asked:
            path = f"{ROOT}/{place}answers/{question}?{urlencode(params)}"
            status, body = await doors.ask(API, path, method="GET", headers=headers)
            told += status == 200 and any(word in body for word in (b"ml/p", b"50", b"ml "))
        return told

    async def act(_: Doors) -> tuple[int, int]:
        everybody = {"Authorization": "Bearer good"}
        return await tell(f"namespaces/{OWN}/", TOKEN), await tell("", everybody)

    own, everybody = doors.attack(act)
    return f"{own} of {len(asked)} answers tell of its Pods; who may see all is told in {everybody}"


ATTACKS: Final = (
    Attack(
        who=TEAM,
        what="writes each annotation that says who holds what, on a new Pod and on one that runs",
        play=forge_at_admission,
    ),
    Attack(
        who=TEAM, what="creates Pods that bear the marks of admission already", play=bear_the_marks
    ),
    Attack(
        who=TEAM,
        what="writes another card on its Pod that runs, while webhook and policies are off",
        play=forge_past_admission,
    ),
    Attack(
        who=TEAM,
        what="creates a Pod that names its node and the card of another team's Pod, while both are"
        " off",
        play=run_past_us,
    ),
    Attack(
        who=TEAM,
        what="names another team's gang, which has 2 of 3 members, on 5 Pods",
        play=join_a_gang,
    ),
    Attack(
        who=TEAM,
        what="has a claim of its own given the card of another team's claim",
        play=name_a_taken_device,
    ),
    Attack(
        who=TEAM,
        what="asks `--api` about another namespace and about all, and what agents, webhooks and"
        " administrators may",
        play=ask_of_others,
    ),
    Attack(
        who=TEAM,
        what="asks `--api` in its own namespace about nodes, cards and Pods of another team",
        play=ask_from_within,
    ),
)
