from __future__ import annotations

from dataclasses import replace

import pytest

from ledger.domain.dialects.names import Dialect
from ledger.domain.kube.node_objects import decode_node
from ledger.domain.nodes import NodeFacts, Taint
from ledger.domain.request.requests import MatchExpression, PlacementRules, Toleration
from scheduler.decide.dialects.registry import NOTHING_OWN, OWN_FIELDS
from scheduler.decide.filter.predicates import Predicates
from scheduler.decide.nodes.labels import accepts, tolerated
from scheduler.decide.nodes.node_arrays import NodeArrays
from scheduler.decide.settings import MGPUSettings, SchedulingSettings
from scheduler.decide.shapes import StaticNeed
from tests.support.clusters import affinity, gpu_node, selector, tolerating
from tests.support.hami import REGISTER, card, registered
from tests.support.objects import node
from tests.support.topologies import MACHINE_X


def _match(key: str, operator: str, *values: str, is_field: bool = False) -> MatchExpression:
    return MatchExpression(key=key, operator=operator, values=values, is_field=is_field)


def _judge(
    need: StaticNeed, *nodes: NodeFacts, settings: SchedulingSettings | None = None
) -> list[str]:
    """Return the first static reason of each node, empty where there is none."""
    predicates = Predicates(NodeArrays(nodes), settings or SchedulingSettings())
    verdict = predicates.verdict(need)
    codes = [b or a for b, a in zip(verdict.before.tolist(), verdict.after.tolist(), strict=True)]
    texts = [verdict.reasons[code].text if code else "" for code in codes]
    admits = [True] * len(nodes) if verdict.admits is None else verdict.admits.tolist()
    assert admits == [not text for text in texts]
    return texts


AFFINITY = "node(s) didn't match Pod's node affinity/selector"


@pytest.mark.parametrize(
    ("expression", "value", "holds"),
    [
        pytest.param(_match("k", "In", "a", "b"), "b", True, id="In takes a listed value"),
        pytest.param(_match("k", "In", "a"), None, False, id="In needs the label"),
        pytest.param(_match("k", "NotIn", "a"), "b", True, id="NotIn takes another value"),
        pytest.param(_match("k", "NotIn", "a"), None, True, id="NotIn holds without the label"),
        pytest.param(_match("k", "NotIn", "a"), "a", False, id="NotIn refuses a listed value"),
        pytest.param(_match("k", "Exists"), "", True, id="Exists takes the empty value"),
        pytest.param(_match("k", "Exists"), None, False, id="Exists needs the label"),
        pytest.param(_match("k", "DoesNotExist"), None, True, id="DoesNotExist without the label"),
        pytest.param(_match("k", "DoesNotExist"), "a", False, id="DoesNotExist with the label"),
        pytest.param(_match("k", "Gt", "8"), "16", True, id="Gt compares numbers, not text"),
        pytest.param(_match("k", "Gt", "8"), "8", False, id="Gt is strict"),
        pytest.param(_match("k", "Lt", "8"), "-1", True, id="Lt takes negative numbers"),
        pytest.param(_match("k", "Lt", "8"), "many", False, id="Lt fails on words"),
        pytest.param(_match("k", "Gt", "8"), None, False, id="Gt needs the label"),
        pytest.param(_match("k", "Gt", "x"), "9", False, id="Gt needs a number to compare with"),
        pytest.param(_match("k", "Near", "8"), "8", False, id="an unknown operator never holds"),
    ],
)
def test_node_selector_expressions(
    expression: MatchExpression, value: str | None, *, holds: bool
) -> None:
    """Expressions mean what kube-scheduler makes of them."""
    assert accepts(expression, value) == holds


def test_selector_pairs_must_all_match() -> None:
    """A node selector is an AND over label pairs."""
    nodes = (
        gpu_node("both", labels={"zone": "a", "disk": "ssd"}),
        gpu_node("one", labels={"zone": "a"}),
    )
    need = StaticNeed(placement=selector(zone="a", disk="ssd"))

    assert _judge(need, *nodes) == ["", AFFINITY]


def test_affinity_terms_are_alternatives() -> None:
    """Any term will do; inside a term every expression must hold."""
    nodes = (
        gpu_node("a", labels={"zone": "a", "big": "1"}),
        gpu_node("b", labels={"zone": "b"}),
        gpu_node("c", labels={"zone": "a"}),
    )
    rules = affinity(
        (_match("zone", "In", "a"), _match("big", "Exists")), (_match("zone", "In", "b"),)
    )

    assert _judge(StaticNeed(placement=rules), *nodes) == ["", "", AFFINITY]


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param(PlacementRules(affinity_terms=()), id="no terms at all"),
        pytest.param(affinity(()), id="a term without expressions"),
    ],
)
def test_an_affinity_that_says_nothing_matches_no_node(rules: PlacementRules) -> None:
    """As in kube-scheduler, a required affinity without content can't be met."""
    assert _judge(StaticNeed(placement=rules), gpu_node("n")) == [AFFINITY]


def test_fields_match_by_node_name() -> None:
    """`metadata.name` is the field that DaemonSet Pods are tied by."""
    rules = affinity((_match("metadata.name", "In", "b", is_field=True),))

    assert _judge(StaticNeed(placement=rules), gpu_node("a"), gpu_node("b")) == [AFFINITY, ""]


TAINT = Taint(key="team", value="ml", effect="NoSchedule")


def _toleration(
    key: str = "team", operator: str = "Equal", value: str = "ml", effect: str = ""
) -> Toleration:
    return Toleration(key=key, operator=operator, value=value, effect=effect)


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        pytest.param(_toleration(), True, id="the same pair, any effect"),
        pytest.param(_toleration(operator=""), True, id="an empty operator means Equal"),
        pytest.param(_toleration(value="web"), False, id="another value"),
        pytest.param(_toleration(effect="NoExecute"), False, id="another effect"),
        pytest.param(_toleration(operator="Exists", value=""), True, id="Exists by key"),
        pytest.param(_toleration(key="", operator="Exists", value=""), True, id="Exists alone"),
        pytest.param(_toleration(key="", value="ml"), False, id="an empty key needs Exists"),
        pytest.param(_toleration(key="other", operator="Exists"), False, id="another key"),
    ],
)
def test_tolerations(toleration: Toleration, *, covers: bool) -> None:
    """Tolerations cover what kube-scheduler lets them cover."""
    assert tolerated(TAINT, (toleration,)) == covers


def test_the_first_untolerated_taint_is_named() -> None:
    """Preferences do not block; the text is kube-scheduler's."""
    prefer = Taint(key="soft", value="", effect="PreferNoSchedule")
    execute = Taint(key="old", value="", effect="NoExecute")
    nodes = (
        gpu_node("soft", taints=(prefer,)),
        gpu_node("hard", taints=(prefer, TAINT, execute)),
        gpu_node("old", taints=(execute,)),
    )
    need = StaticNeed(placement=tolerating(_toleration()))

    assert _judge(StaticNeed(placement=PlacementRules()), *nodes) == [
        "",
        "node(s) had untolerated taint {team: ml}",
        "node(s) had untolerated taint {old: }",
    ]
    assert _judge(need, *nodes)[1] == "node(s) had untolerated taint {old: }"


def test_a_cordoned_node_comes_before_its_taints() -> None:
    """kube-scheduler asks for the cordon first, and it can be tolerated by its own taint's key."""
    node = gpu_node("n", unschedulable=True, taints=(TAINT,))
    cordon = _toleration("node.kubernetes.io/unschedulable", "Exists", "")

    assert _judge(StaticNeed(placement=PlacementRules()), node) == ["node(s) were unschedulable"]
    assert _judge(StaticNeed(placement=tolerating(cordon)), node) == [
        "node(s) had untolerated taint {team: ml}"
    ]


def _gpu_need(dialect: Dialect, **fields: object) -> StaticNeed:
    values = {"placement": PlacementRules(), "device_types": ("gpu",), "model_names": ((),)}
    own = dict(zip(OWN_FIELDS, NOTHING_OWN, strict=True))
    own |= {name: fields.pop(name) for name in OWN_FIELDS if name in fields}
    values |= {"dialect": dialect, "own": tuple(own.values()), **fields}
    return StaticNeed(**values)  # type: ignore[arg-type]


def test_a_node_serves_the_dialects_it_advertises() -> None:
    """Without a Device object the cards are for one dialect only."""
    nodes = (
        gpu_node("any"),
        gpu_node("plugin", dialects=frozenset({Dialect.NVIDIA})),
        gpu_node("none", 0),
    )

    assert _judge(_gpu_need(Dialect.KOORDINATOR), *nodes) == [
        "",
        "DialectNotServed",
        "Insufficient gpu devices",
    ]


def test_models_that_a_pod_allows() -> None:
    """A node whose cards are all of other models is named so; one right card is enough."""
    nodes = (
        gpu_node("t4", model="T4"),
        gpu_node("mixed", models=("A10", "T4")),
        gpu_node("a10", model="A10"),
    )
    need = _gpu_need(Dialect.KOORDINATOR, model_names=(("T4",),))

    assert _judge(need, *nodes) == ["", "", "GPUModelMismatch"]


BURST = "native-burst-share"


@pytest.mark.parametrize(
    ("fields", "reasons"),
    [
        pytest.param(
            {"whole_cards": False},
            ["", "MGPUPolicyMismatch", "MGPUNodeInvalid"],
            id="fixed-share is the default on both sides",
        ),
        pytest.param(
            {"whole_cards": True}, ["", "", "MGPUNodeInvalid"], id="whole cards ignore policies"
        ),
        pytest.param(
            {"whole_cards": False, "mgpu_policy": BURST},
            ["MGPUPolicyMismatch", "", "MGPUNodeInvalid"],
            id="fractions need the node's policy",
        ),
        pytest.param(
            {"whole_cards": True, "mgpu_multi": True},
            ["MGPUPolicyMismatch", "MGPUPolicyMismatch", "MGPUNodeInvalid"],
            id="several cards per container need native-burst-share on both sides",
        ),
    ],
)
def test_mgpu_compute_policies(fields: dict[str, object], reasons: list[str]) -> None:
    """Rule: GPU-sharing contract A.4, points 2 and 3."""
    nodes = (
        gpu_node("fixed"),
        gpu_node("burst", mgpu_policy=BURST),
        gpu_node("invalid", mgpu_invalid=True),
    )

    assert _judge(_gpu_need(Dialect.MGPU, **fields), *nodes) == reasons


def test_mgpu_can_be_turned_off() -> None:
    """Then no node serves it, and the reason says which setting."""
    settings = SchedulingSettings(mgpu=MGPUSettings(enabled=False))

    assert _judge(_gpu_need(Dialect.MGPU), gpu_node("n"), settings=settings) == ["MGPUDisabled"]


def test_pods_with_cpus_of_their_own_need_a_topology() -> None:
    """Rule: cli.md, CPU sets."""
    nodes = (gpu_node("known", cpu_topology=MACHINE_X), gpu_node("unknown"))
    need = StaticNeed(placement=PlacementRules(), pinned=True)

    assert _judge(need, *nodes) == ["", "node(s) invalid CPU Topology"]


OWNED = Taint(key="tenure.sh/owned", value="", effect="NoSchedule")
OWNED_LABEL = {"tenure.sh/owned": "true"}


def test_only_nodes_of_ours_give_devices_and_cpus_where_that_is_set() -> None:
    """Without the taint, or without the label, others get to the cards."""
    nodes = (
        gpu_node("ours", labels=OWNED_LABEL, taints=(OWNED,)),
        gpu_node("untainted", labels=OWNED_LABEL),
        gpu_node("unlabelled", taints=(OWNED,)),
        gpu_node("wished", labels=OWNED_LABEL, taints=(replace(OWNED, effect="PreferNoSchedule"),)),
        gpu_node("said no", labels={"tenure.sh/owned": "false"}, taints=(OWNED,)),
    )
    everywhere = tolerating(
        Toleration(key="tenure.sh/owned", operator="Exists", value="", effect="")
    )
    live = SchedulingSettings(owned_nodes_only=True)
    for need in (
        StaticNeed(placement=everywhere, device_types=("gpu",), model_names=((),)),
        StaticNeed(placement=everywhere, device_types=("rdma",), model_names=((),)),
        StaticNeed(placement=everywhere, pinned=True),
    ):
        ours, *others = _judge(need, *nodes, settings=live)
        assert ours != "NodeNotOwned"
        assert others == ["NodeNotOwned"] * 4
        assert "NodeNotOwned" not in _judge(need, *nodes)
    plain = StaticNeed(placement=everywhere)
    assert _judge(plain, *nodes, settings=live) == [""] * 5


def test_a_node_where_hamis_plugin_lives_grants_cards_once_it_is_owned() -> None:
    """Its scheduler counts none of our Pods."""
    facts, owned = (
        decode_node(node(name, annotations={REGISTER: registered(card(f"GPU-{name}"))}))[0]
        for name in ("a", "b")
    )
    owned = replace(owned, labels=OWNED_LABEL, taints=(OWNED,))
    tolerates = tolerating(
        Toleration(key="tenure.sh/owned", operator="Exists", value="", effect="")
    )
    need = StaticNeed(
        placement=tolerates,
        dialect=Dialect.NVIDIA,
        device_types=("gpu",),
        model_names=((),),
        own=NOTHING_OWN,
    )

    assert _judge(need, facts, owned) == ["NodeOfOtherScheduler", ""]
    assert _judge(StaticNeed(placement=tolerates), facts) == [""]
