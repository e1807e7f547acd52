from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.domain.errors import InputError
from ledger.domain.request.requests import PodRequest
from scheduler.decide.outcome import Placement
from scheduler.service.answering import Extender, NotNowError
from tests.support.extending import NoBinds, NoHolds, NoRefusals, preempting
from tests.support.live import Live
from tests.support.objects import Object, container, pod

NAMES = ("a", "b", "c")
PODS = tuple(
    pod(container(limits={"koordinator.sh/gpu": percent}), name=f"p{percent}", uid=f"u{percent}")
    for percent in (50, 100, 200)
)
acts = st.tuples(
    st.sampled_from(["filter", "filter", "score", "score", "close", "open", "anew", "take"]),
    st.sampled_from(PODS),
    st.permutations(NAMES),
    st.sampled_from(["as answered", "as answered", "in another order", "with another Pod"]),
)


class Noted:
    """Holds nothing, and remembers for whom something was to be held."""

    def __init__(self) -> None:
        self.uids: list[str] = []

    def asked_again(self, pod_uid: str) -> None:
        """Do nothing."""

    def node_of(self, pod_uid: str) -> str:  # noqa: ARG002
        """Return none."""
        return ""

    def promise(self, request: PodRequest, node_name: str, seconds: float = 0) -> bool:  # noqa: ARG002
        """Do nothing."""
        return False

    def expected(self, placement: Placement, pod: Mapping[str, Any], decided_at: int = -1) -> None:
        """Note it."""
        assert decided_at >= 0
        assert pod["metadata"]["uid"] == placement.request.uid
        self.uids.append(placement.request.uid)


class Scene:
    """Three nodes, and an extender that is asked about them."""

    def __init__(self) -> None:
        self.live = Live()
        for name in NAMES:
            self.live.add_node(name, 2)
        self.live.settle()
        self.why = ""
        self.noted = Noted()
        self.extender = Extender(
            self.live.view,
            NoBinds(),
            why_not=lambda: self.why,
            groups=self.live.groups,
            holds=self.noted,
            refusals=NoRefusals(),
            preempting=preempting(self.live.view, NoHolds(), self.live.groups, self.live.clock),
        )
        self.answered: list[str] = []
        self.born = 0

    def filter(self, one: Object, names: list[str]) -> None:
        """Ask where a Pod can go, as kube-scheduler writes it."""
        answer = json.loads(self.extender.filter(question(one, names)))
        self.answered = answer["NodeNames"]

    def scored(self, one: Object, names: list[str], *, read_all: bool) -> bytes | str:
        """Return the answer of prioritize; a message with spaces is read as a whole."""
        try:
            return self.extender.prioritize(question(one, names, read_all=read_all))
        except (InputError, NotNowError) as error:
            return str(error)

    def change(self, act: str, one: Object, name: str) -> None:
        """Let something happen to a node."""
        view = self.live.view
        match act:
            case "close":
                view.close_node(name, "NodeUnreadable")
            case "open":
                view.forget_fault(name)
            case "anew":
                self.born += 1
                self.live.add_node(name, 1, uid=f"uid-{name}-{self.born}")
                self.live.settle()
            case _:
                self.born += 1
                body = {**one, "metadata": {**one["metadata"], "uid": f"t{self.born}"}}
                view.requests.read(body)
                chosen = view.choose(f"t{self.born}", name)
                if isinstance(chosen, Placement):
                    self.live.reserve(chosen)


def question(one: Object, names: list[str], *, read_all: bool = False) -> bytes:
    """Return a question; without spaces as kube-scheduler writes it."""
    body = {"Pod": one, "Nodes": None, "NodeNames": names}
    return json.dumps(body, separators=None if read_all else (",", ":")).encode()


@settings(max_examples=40)
@given(steps=st.lists(acts, min_size=4, max_size=16))
def test_scores_are_those_of_who_reads_every_name(
    steps: list[tuple[str, Object, list[str], str]],
) -> None:
    """Whatever happens to nodes between filter and prioritize, whoever is asked about."""
    scene = Scene()
    last = PODS[0]
    for act, one, names, about in steps:
        if act == "filter":
            last = one
            scene.filter(one, names)
        elif act == "score":
            body = one if about == "with another Pod" else last
            asked = scene.answered[::-1] if about == "in another order" else scene.answered
            quick = scene.scored(body, asked, read_all=False)
            assert quick == scene.scored(body, asked, read_all=True)
        else:
            scene.change(act, one, names[0])


def test_names_that_are_no_members_of_the_question_are_not_taken_for_them() -> None:
    """The end of a message may be the end of what is within it."""
    scene = Scene()
    scene.filter(PODS[0], list(NAMES))
    within = question(PODS[0], scene.answered).decode()
    for body in (f'{{"NodeNames":["a"],"Pod":{within}}}', f'{{"x":[{within}', within[1:]):
        try:
            answer = scene.extender.prioritize(body.encode())
        except InputError:
            continue
        assert [one["Host"] for one in json.loads(answer)] == ["a"]


def test_a_place_is_held_for_the_pod_that_is_asked_about() -> None:
    """Two kube-schedulers may ask in turn, about Pods that pass the same nodes."""
    scene = Scene()
    for one in PODS:
        scene.filter(one, list(NAMES))
    for one in PODS:
        scene.scored(one, scene.answered, read_all=False)

    assert scene.noted.uids == [one["metadata"]["uid"] for one in PODS]


def test_nothing_is_scored_that_is_not_answered_now() -> None:
    """Also where the names need not be read."""
    scene = Scene()
    scene.filter(PODS[0], list(NAMES))
    scene.why = "ClusterViewStale: nodes"

    assert scene.scored(PODS[0], scene.answered, read_all=False) == scene.why
