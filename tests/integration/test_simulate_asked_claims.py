"""`tenure simulate`: Pods that arrive with claims get devices by them, or are told why not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.cards_of_others import sliced
from tests.support.cli import CommandLine
from tests.support.dra import card, consumes, counters, part, resource_claim, resource_slice, result
from tests.support.objects import Object, container, device, gpu_device, node, pod

pytestmark = pytest.mark.integration

NOW = ("--now", "2026-03-02T00:00:00Z")
H100 = 'device.attributes["gpu.nvidia.com"].productName == "H100"'
GPU = 'device.driver == "gpu.nvidia.com"'


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Return a command line with a ledger of its own."""
    return CommandLine(tmp_path / "run.db", capsys)


def device_class(name: str = "gpu.nvidia.com", *expressions: str) -> Object:
    """Return a DeviceClass that selects by these expressions, else by the driver."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": each}} for each in expressions or (GPU,)]},
    }


def asking(count: int = 1, *expressions: str, **more: object) -> Object:
    """Return the spec of a claim for so many devices."""
    exactly: Object = {"deviceClassName": "gpu.nvidia.com", "count": count, **more}
    if expressions:
        exactly["selectors"] = [{"cel": {"expression": each}} for each in expressions]
    return {"devices": {"requests": [{"name": "g", "exactly": exactly}]}}


def waiting(name: str, spec: Object | None = None) -> Object:
    """Return a claim that nobody has given anything."""
    claim = resource_claim(name, namespace="ml")
    return {**claim, "spec": spec or asking(), "status": {}}


def template(name: str, spec: Object | None = None) -> Object:
    """Return a ResourceClaimTemplate."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {"spec": spec or asking()},
    }


def user(name: str, *claims: str, of: str = "resourceClaimName") -> Object:
    """Return a Pod that uses claims."""
    entries = [{"name": f"c{n}", of: each} for n, each in enumerate(claims)]
    return pod(container(), name=name, uid=f"uid-{name}", namespace="ml", resourceClaims=entries)


def pure(number: int = 2, name: str = "n1", *, of: int = 1) -> list[Object]:
    """Return a node of which slices alone list cards."""
    cards = [card(f"gpu-{n}", f"GPU-{name}-{n}") for n in range(number)]
    return [node(name), resource_slice(cards, node=name, of=of)]


def written(line: CommandLine, objects: Sequence[Object]) -> str:
    """Write objects into a file and return its path."""
    path = line.ledger.parent / "in.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
    return str(path)


def decided(line: CommandLine, *objects: Object) -> dict[str, Object]:
    """Return the placements of a run by the name of the Pod, of which the ledger is proved."""
    path = written(line, objects)
    done = line.ask("simulate", path, *NOW, "-o", "json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert line.ask("verify").code == 0
    replayed = line.ask("ledger", "replay")
    assert replayed.code == 0, replayed.out
    for each in told["placements"]:
        one = json.loads(line.run("why", f"ml/{each['name']}", path, "-o", "json").out)
        message = (each["unschedulable"] or {"message": ""})["message"]
        mine = (each["node"], each["devices"], message)
        assert (one["node"], one["devices"], one["message"]) == mine
        assert one["state"] == "fits" if each["node"] else one["state"] in {"waiting", "refused"}
    found = {each["name"]: each for each in told["placements"]}
    return {**found, "": told["summary"]}


def cards(placement: Object) -> list[str]:
    """Return the ids of the cards that a Pod got."""
    return [each["id"] for each in placement["devices"].get("gpu", [])]


def held(line: CommandLine) -> dict[str, list[Any]]:
    """Return who holds which card by the ledger's map."""
    return {
        one["id"]: [(each["name"], each.get("pods")) for each in one["holders"]]
        for each_node in json.loads(line.ask("map", "-o", "json").out)["nodes"]
        for group in each_node["groups"]
        for one in group["devices"]
    }


def test_the_table_names_the_cards_that_a_claim_gives(line: CommandLine) -> None:
    """As `-o json` does."""
    objects = [*pure(), device_class(), waiting("a"), user("a", "a")]
    rows = line.ask("simulate", written(line, objects), *NOW).out.splitlines()
    assert rows[1].split()[:4] == ["ml", "a", "n1", "gpu:0"]


def test_each_claim_gets_a_card_of_its_own_and_the_third_none(line: CommandLine) -> None:
    """Two cards, three claims: the third is refused in kube-scheduler's words."""
    names = ("a", "b", "c")
    claims = [waiting(f"claim-{name}") for name in names]
    pods = [user(name, f"claim-{name}") for name in names]
    found = decided(line, *pure(), device_class(), *claims, *pods)

    assert [cards(found[name]) for name in names] == [["GPU-n1-0"], ["GPU-n1-1"], []]
    assert found["c"]["unschedulable"]["nodes"] == {"n1": ["cannot allocate all claims"]}
    assert found[""]["warnings"] == []
    assert held(line) == {"GPU-n1-0": [("a", None)], "GPU-n1-1": [("b", None)]}
    assert "ml/a" in line.ask("who", "n1/0").out
    said = line.ask("ledger", "replay").out
    assert "not decided again: 3 times with claims of the files" in said, said


def test_pods_that_share_a_claim_share_its_card_on_its_node(line: CommandLine) -> None:
    """Of two nodes the second Pod goes where the claim is."""
    objects = (*pure(1), *pure(1, "n2"), device_class(), waiting("both"))
    found = decided(line, *objects, user("a", "both"), user("b", "both"))

    assert found["a"]["node"] == found["b"]["node"]
    assert cards(found["a"]) == cards(found["b"]) != []


def test_a_card_of_the_nodes_own_is_reserved_and_bound_for_the_claim(line: CommandLine) -> None:
    """A Device lists it too: the claim is its holder, and a Pod of ours gets the other one."""
    own = [gpu_device(number) for number in range(2)]
    sliced = [card(f"gpu-{number}", each["id"]) for number, each in enumerate(own)]
    plain = pod(container(limits={"nvidia.com/gpu": 1}), name="plain", uid="p", namespace="ml")
    objects = [node("n1"), device(*own), resource_slice(sliced, node="n1"), device_class()]
    pods = [user("a", "mine"), plain, user("b", "mine"), user("late", "none-left")]
    found = decided(line, *objects, waiting("mine"), waiting("none-left"), *pods)

    assert cards(found["a"]) == cards(found["b"]) == [own[0]["id"]]
    assert cards(found["plain"]) == [own[1]["id"]]
    assert found["late"]["node"] is None
    assert held(line) == {own[0]["id"]: [("mine", ["a", "b"])], own[1]["id"]: [("plain", None)]}
    assert "CLAIM" in line.ask("why", "ml/mine").out


def test_a_template_gives_each_pod_a_claim(line: CommandLine) -> None:
    """Two Pods of one template have two cards."""
    pods = [user(name, "t", of="resourceClaimTemplateName") for name in ("a", "b")]
    found = decided(line, *pure(), device_class(), template("t"), *pods)

    assert [cards(found[name]) for name in ("a", "b")] == [["GPU-n1-0"], ["GPU-n1-1"]]


def test_a_claim_of_a_template_is_nobody_elses(line: CommandLine) -> None:
    """Not that of another Pod whose name and entry read alike, nor a claim with such a name."""
    has = resource_claim("a-b-c", result("gpu-0", node="n1"), node="n1", namespace="ml")
    pods = [user(name, "t", of="resourceClaimTemplateName") for name in ("a", "a-b")]
    for each, entry in zip(pods, ("b-c", "c"), strict=True):
        each["spec"]["resourceClaims"][0]["name"] = entry
    found = decided(line, *pure(3), device_class(), template("t"), has, *pods)

    assert [cards(found[name]) for name in ("a", "a-b")] == [["GPU-n1-1"], ["GPU-n1-2"]]


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"name": "c0", "resourceClaimName": "c"}, "spec.resourceClaims: expected a list"),
        ("c", "spec.resourceClaims: expected a list"),
        (["c"], "spec.resourceClaims[0]: expected an object"),
        ([{"name": 5}], "spec.resourceClaims[0].name: expected a text"),
        ([{"name": "c0", "resourceClaimName": ["c"]}], "resourceClaimName: expected a text"),
    ],
)
def test_claims_that_are_no_list_are_not_decided_in_silence(
    line: CommandLine, claims: object, said: str
) -> None:
    """Exit 2 with the Pod and the field, as of any other list; a map names one that runs."""
    asking = user("a", "c")
    asking["spec"]["resourceClaims"] = claims
    path = written(line, [*pure(), asking])
    answer = line.run("simulate", path)

    assert (answer.code, answer.out) == (2, ""), answer
    assert f"Pod ml/a: {said}" in answer.err or said in answer.err, answer.err
    asking |= {"status": {"phase": "Running"}}
    asking["spec"]["nodeName"] = "n1"
    drawn = line.run("map", written(line, [*pure(), asking]), "-o", "json")
    assert any("resourceClaims" in each["text"] for each in json.loads(drawn.out)["contradictions"])


def taint_rule(selector: Object | None, effect: str = "NoSchedule", version: str = "v1") -> Object:
    """Return a DeviceTaintRule."""
    spec: Object = {"taint": {"key": "x.com/ill", "value": "y", "effect": effect}}
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "r"},
        "spec": spec if selector is None else {**spec, "deviceSelector": selector},
    }


ILL = "taint x.com/ill=y:NoSchedule"


@pytest.mark.parametrize(
    ("selector", "closed"),
    [
        ({"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"}, [ILL, None]),
        ({"device": "gpu-1"}, [None, ILL]),
        ({"driver": "gpu.nvidia.com"}, [ILL, ILL]),
        ({"pool": "n1"}, [ILL, ILL]),
        ({}, [ILL, ILL]),
        ({"driver": "gpu.amd.com"}, [None, None]),
        ({"pool": "n2", "device": "gpu-0"}, [None, None]),
        (None, [None, None]),
    ],
)
@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1alpha3"])
def test_a_taint_rule_counts_as_the_devices_own_taint(
    line: CommandLine, selector: Object | None, closed: list[str | None], version: str
) -> None:
    """For who asks by claims, in the map of the objects and in that of the ledger, no warning."""
    objects = [*pure(), taint_rule(selector, version=version), device_class(), waiting("c")]
    found = decided(line, *objects, user("a", "c"))

    free = [f"GPU-n1-{number}" for number, why in enumerate(closed) if why is None]
    assert cards(found["a"]) == free[:1]
    assert not [each for each in found[""]["warnings"] if "DeviceTaintRule" in each]
    for words in (("map", written(line, objects)), ("map", "--ledger", str(line.ledger))):
        drawn = json.loads(line.run(*words, "-o", "json").out)
        devices = [d for g in drawn["nodes"][0]["groups"] for d in g["devices"]]
        assert [each["closed"] for each in devices] == closed


@pytest.mark.parametrize(
    ("toleration", "gets"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "ill", "operator": "Exists"}, True),
        ({"key": "ill", "value": "y"}, True),
        ({"key": "ill", "value": "y", "effect": "NoExecute"}, True),
        ({"key": "ill", "operator": "Exists", "effect": "NoSchedule"}, False),
        ({"key": "ill", "value": "n"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_a_claim_that_tolerates_a_taint_gets_the_device(
    *, toleration: Object, gets: bool, line: CommandLine
) -> None:
    """Rule: resource.k8s.io, DeviceToleration; every taint of the device has to be tolerated."""
    taint = {"key": "ill", "value": "y", "effect": "NoExecute"}
    slices = resource_slice([card("gpu-0", "GPU-0", taints=[taint])], node="n1")
    wants = waiting("x", asking(tolerations=[toleration]))

    found = decided(line, node("n1"), slices, device_class(), wants, user("a", "x"))["a"]

    assert (found["node"] == "n1") == gets


@pytest.mark.parametrize(
    ("of_slice", "of_device", "field"),
    [
        ({"skipNodeOperations": ["*"]}, {}, "skipNodeOperations"),
        ({"partitionTypeAttribute": "x.com/p"}, {}, "partitionTypeAttribute"),
        ({}, {"nodeAllocatableResources": {"memory": {}}}, "nodeAllocatableResources"),
        ({}, {"attributes": {"models": {"strings": ["a"]}}}, "strings"),
        (
            {},
            {"consumesCounters": [{"counterSet": "s", "compatibilityGroups": ["a"]}]},
            "compatibilityGroups",
        ),
    ],
)
def test_a_device_that_says_what_is_not_known_is_given_to_nobody(
    of_slice: Object, of_device: Object, field: str, line: CommandLine
) -> None:
    """1.37 and 1.38: by the field's name, where a request selects it; others are decided."""
    cards = [card("gpu-0", "GPU-0", **of_device), card("gpu-1", "GPU-9", futureField=1)]
    new = resource_slice(cards, node="n1", sets={"s": {}})
    new["spec"].update(of_slice)
    on = waiting("x", asking(1, 'device.driver == "gpu.nvidia.com"'))
    other = resource_slice([card("gpu-0", "GPU-1")], node="n2", driver="gpu.example.com")
    plain = device_class("example", 'device.driver == "gpu.example.com"')
    wants = waiting("y", asking(deviceClassName="example"))
    objects = [node("n1"), node("n2"), new, other, device_class(), plain, on, wants]

    found = decided(line, *objects, user("a", "x"), user("b", "y"))

    why = found["a"]["unschedulable"]["message"]
    assert f"cannot allocate all claims: not decided: {field}" in why
    assert (why.count("not decided"), "futureField" in why) == (1, True)
    assert (found["a"]["node"], found["b"]["node"]) == (None, "n2")


def served(name: str, of_class: str = "gpu.nvidia.com", made: str = "2026-03-01") -> Object:
    """Return a DeviceClass that serves a resource."""
    body = device_class(of_class, GPU)
    body["metadata"]["creationTimestamp"] = f"{made}T00:00:00Z"
    body["spec"]["extendedResourceName"] = name
    return body


def wanting(name: str, resource: str, count: int = 1) -> Object:
    """Return a Pod that asks for a resource."""
    asks = container(limits={resource: count})
    return pod(asks, name=name, uid=f"uid-{name}", namespace="ml")


@pytest.mark.parametrize(
    "resource",
    ["example.com/h100", "nvidia.com/gpu", "deviceclass.resource.kubernetes.io/gpu.nvidia.com"],
)
def test_a_resource_of_a_class_is_given_by_claims(resource: str, line: CommandLine) -> None:
    """KEP-5004: by the class's name for it; what is asked for is told, also where it waits."""
    plain = resource.startswith("deviceclass.")
    of_class = device_class() if plain else served(resource)
    pods = [wanting("a", resource), wanting("b", resource, 2), wanting("c", resource)]

    found = decided(line, *pure(), of_class, *pods)

    assert [cards(found[name]) for name in "ac"] == [["GPU-n1-0"], ["GPU-n1-1"]]
    why = found["b"]["unschedulable"]["message"]
    assert "cannot allocate all claims" in why
    answer = line.run("why", "ml/a", written(line, [*pure(), of_class, *pods]))
    assert answer.out.startswith(f"ml/a waits, asks for 1 {resource}; it would get n1 gpu:0")


def test_a_pod_whose_claim_by_a_class_is_not_told_closes_its_node(line: CommandLine) -> None:
    """Nobody knows which device it has: none is given there."""
    runs = wanting("runs", "example.com/h100")
    runs["spec"]["nodeName"] = "n1"
    runs["status"] = {"extendedResourceClaimStatus": {"resourceClaimName": "of-the-scheduler"}}

    found = decided(
        line, *pure(), served("example.com/h100"), runs, wanting("a", "example.com/h100")
    )

    assert "pod ml/runs has a claim that is not told" in found["a"]["unschedulable"]["message"]


def test_the_newest_class_of_a_resource_counts(line: CommandLine) -> None:
    """Rule: resource.k8s.io, DeviceClass: made later, else the first by name."""
    other = served("example.com/h100", "a-none", "2026-03-02")
    other["spec"]["selectors"] = [{"cel": {"expression": 'device.driver == "none"'}}]
    of_class = served("example.com/h100")

    found = decided(line, *pure(), other, of_class, wanting("a", "example.com/h100"))
    assert found["a"]["node"] is None
    other["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    line.ledger.unlink()
    found = decided(line, *pure(), other, of_class, wanting("a", "example.com/h100"))
    assert found["a"]["node"] == "n1"


def test_a_resource_that_a_plugin_offers_is_the_plugins(line: CommandLine) -> None:
    """Where a node offers it, that node gives it; no other node gives it by claims here."""
    offers = node("p", allocatable={"cpu": "8", "memory": "8Gi", "example.com/h100": "1"})
    of_class = served("example.com/h100")

    found = decided(line, *pure(), offers, of_class, wanting("a", "example.com/h100"))

    assert found["a"]["node"] == "p"


@pytest.mark.parametrize("field", ["managementMode", "suitableNodes"])
def test_a_class_that_says_what_is_not_known_is_not_decided(field: str, line: CommandLine) -> None:
    """By the field's name, for its claims and for who asks by its resource."""
    of_class = served("example.com/h100")
    of_class["spec"][field] = {}
    asks = (user("a", "x"), wanting("b", "example.com/h100"))

    found = decided(line, *pure(), of_class, waiting("x"), *asks)

    for name, path in (("a", "resourceClaims"), ("b", "containers")):
        why = found[name]["unschedulable"]["message"]
        assert why == f"spec.{path}: not decided: class gpu.nvidia.com: {field}"


def test_why_names_the_claims_that_keep_devices_for_nobody(line: CommandLine) -> None:
    """A Pod that waits for a claim is told of those whose Pods are gone."""
    zombie = resource_claim(
        "left", result("gpu-0", node="n1"), node="n1", pods=("gone",), namespace="ml"
    )
    zombie["metadata"]["deletionTimestamp"] = "2026-03-01T00:00:00Z"
    objects = [*pure(1), device_class(), zombie, waiting("x"), user("a", "x")]

    told = line.run("why", "ml/a", written(line, objects))

    assert "cannot allocate all claims" in told.out
    assert "held by claim ml/left, being deleted, its Pod is not there (gone)" in told.err


def test_a_taint_rule_without_effect_bars_nobody(line: CommandLine) -> None:
    """`None` tells of a device and keeps nobody off; beside others it changes nothing."""
    objects = [*pure(1), taint_rule({}, effect="None"), device_class(), waiting("c")]

    assert cards(decided(line, *objects, user("a", "c"))["a"]) == ["GPU-n1-0"]


@pytest.mark.parametrize("more", [{"deviceClassName": "x"}, {"pool": 5}])
def test_a_taint_rule_that_selects_by_more_bars_more_and_says_so(
    line: CommandLine, more: Object
) -> None:
    """An older version had classes and expressions: rather a device too few is given."""
    rule = taint_rule({**more, "device": "gpu-0"}, version="v1alpha3")
    found = decided(line, *pure(), rule, device_class(), waiting("c"), user("a", "c"))

    assert cards(found["a"]) == ["GPU-n1-1"]
    (warning,) = found[""]["warnings"]
    assert "DeviceTaintRule r: selects by more than driver, pool and device" in warning
    line.ledger.unlink()
    found = decided(line, *pure(1), rule, device_class(), waiting("c"), user("a", "c"))
    why = found["a"]["unschedulable"]["message"]
    assert f"cannot allocate all claims: not decided: deviceSelector.{next(iter(more))}" in why


def test_claims_without_uids_are_claims_of_their_own(line: CommandLine) -> None:
    """A Pod with two has two cards, another Pod with the second has its card."""
    claims = [waiting(name) for name in ("x", "y")]
    for each in claims:
        del each["metadata"]["uid"]
    found = decided(line, *pure(), device_class(), *claims, user("a", "x", "y"), user("b", "y"))

    assert cards(found["a"]) == ["GPU-n1-0", "GPU-n1-1"]
    assert cards(found["b"]) == ["GPU-n1-1"]


def test_a_node_whose_pod_has_a_claim_that_is_not_told_gives_nothing(line: CommandLine) -> None:
    """Which devices it has is not known: a Pod goes elsewhere."""
    running = user("running", "gone")
    running["spec"]["nodeName"] = "n1"
    running["status"] = {"phase": "Running"}
    asks = [waiting("x"), waiting("y"), running, user("a", "x"), user("b", "y")]
    found = decided(line, *pure(), *pure(1, "n2"), device_class(), *asks)

    assert found["a"]["node"] == "n2"
    assert "ml/running has a claim that is not told" in found["b"]["unschedulable"]["message"]


def test_what_claims_have_already_is_given_to_nobody(line: CommandLine) -> None:
    """Of two cards one is allocated to a claim that nobody uses; a Pod may use that one."""
    idle = resource_claim("idle", result("gpu-0", node="n1"), node="n1", namespace="ml")
    objects = (*pure(), device_class(), idle, waiting("new"))
    found = decided(line, *objects, user("a", "new"), user("b", "idle"))

    assert (cards(found["a"]), cards(found["b"])) == (["GPU-n1-1"], ["GPU-n1-0"])


def test_versions_are_alike(line: CommandLine) -> None:
    """A constraint may be about a version."""
    versions = enumerate(("1.0.0", "2.0.0", "2.0.0"))
    listed = [card(f"gpu-{n}", f"GPU-{n}", said={"v": {"version": one}}) for n, one in versions]
    spec = asking(2)
    spec["devices"]["constraints"] = [{"matchAttribute": "gpu.nvidia.com/v"}]
    objects = [node("n1"), resource_slice(listed, node="n1"), device_class()]
    found = decided(line, *objects, waiting("two", spec), user("a", "two"))

    assert cards(found["a"]) == ["GPU-1", "GPU-2"]


def test_a_claim_of_a_node_that_is_not_in_the_files_closes_no_other(line: CommandLine) -> None:
    """Its device is there, not here."""
    far = resource_claim("far", result("gpu-0", node="n9"), node="n9", namespace="ml")
    found = decided(line, *pure(), device_class(), far, waiting("x"), user("a", "x"))

    assert cards(found["a"]) == ["GPU-n1-0"]


def test_selectors_and_constraints_choose(line: CommandLine) -> None:
    """By model and by an attribute that all devices have alike."""
    rails = enumerate(("x", "y", "y"))
    listed = [card(f"gpu-{n}", f"GPU-{n}", said={"rail": {"string": each}}) for n, each in rails]
    spec = asking(2, H100)
    spec["devices"]["constraints"] = [{"matchAttribute": "gpu.nvidia.com/rail"}]
    none = asking(1, H100.replace("H100", "T4"))
    objects = [node("n1"), resource_slice(listed, node="n1"), device_class()]
    found = decided(
        line, *objects, waiting("two", spec), waiting("t4", none), user("a", "two"), user("b", "t4")
    )

    assert cards(found["a"]) == ["GPU-1", "GPU-2"]
    assert found["b"]["node"] is None


def test_parts_of_one_card_fit_by_their_counters(line: CommandLine) -> None:
    """All of a card is not there any more once a part of it is held."""
    listed = [
        card("gpu-0", "GPU-0", **consumes("s", slice_0=1, slice_1=1)),
        part("mig-0", "GPU-0", **consumes("s", slice_0=1)),
        part("mig-1", "GPU-0", **consumes("s", slice_1=1)),
    ]
    sliced = resource_slice(listed, node="n1", sets={"s": counters(slice_0=1, slice_1=1)})
    has = resource_claim("has", result("mig-0", node="n1"), node="n1", namespace="ml")
    pods = [user("a", "new"), user("b", "more")]
    claims = [waiting("new"), waiting("more")]
    found = decided(line, node("n1"), sliced, device_class(), has, *claims, *pods)

    assert found["a"]["node"] == "n1"
    assert found["b"]["node"] is None


LOST = resource_claim("lost", result("gpu-9", node="n1"), node="n1", namespace="ml")
GOING = waiting("x")
GOING["metadata"] = {**GOING["metadata"], "deletionTimestamp": "2026-03-01T00:00:00Z"}
ANYWHERE = resource_slice([card("gpu-0", "GPU-0")], node="n1")
ANYWHERE["spec"] = {**ANYWHERE["spec"], "allNodes": True}
del ANYWHERE["spec"]["nodeName"]
TAINTED = card("gpu-0", "GPU-0", taints=[{"key": "k", "effect": "NoSchedule"}])


@pytest.mark.parametrize(
    ("objects", "why"),
    [
        pytest.param([*pure(), device_class()], 'resourceclaim "x" not found', id="no claim"),
        pytest.param([*pure(), device_class(), GOING], "is being deleted", id="a claim that goes"),
        pytest.param(
            [*pure(), waiting("x")], "device class gpu.nvidia.com does not exist", id="no class"
        ),
        pytest.param(
            [*pure(), device_class(), waiting("x"), LOST],
            "claim ml/lost has a device that no slice lists",
            id="a device that no slice lists",
        ),
        pytest.param(
            [*pure(), device_class(), waiting("x", asking(1 << 40))],
            "more than 32 devices in one claim",
            id="more devices than a claim can have",
        ),
        pytest.param(
            [node("n1"), ANYWHERE, device_class(), waiting("x")],
            "not decided: some of the devices are not looked at",
            id="devices of all nodes",
        ),
        pytest.param(
            [node("n1"), device_class(), waiting("x")], "cannot allocate all claims", id="no slice"
        ),
        pytest.param(
            [*pure(of=2), device_class(), waiting("x")],
            "cannot allocate all claims",
            id="a slice of the pool is missing",
        ),
        pytest.param(
            [*pure(), resource_slice([], node="n1", generation=2), device_class(), waiting("x")],
            "cannot allocate all claims",
            id="the devices are of an old generation",
        ),
        pytest.param(
            [node("n1"), resource_slice([TAINTED], node="n1"), device_class(), waiting("x")],
            "cannot allocate all claims",
            id="a taint",
        ),
        pytest.param(
            [
                node("n1"),
                resource_slice([card("gpu-0", "GPU-0", allowMultipleAllocations=True)], node="n1"),
                device_class(),
                waiting("x"),
            ],
            "cannot allocate all claims: not decided: allowMultipleAllocations",
            id="a shared device",
        ),
    ],
)
def test_who_gets_nothing_is_told_why(line: CommandLine, objects: list[Object], why: str) -> None:
    """Never placed as if it had not asked."""
    told = decided(line, *objects, user("a", "x"))["a"]

    assert told["node"] is None
    assert why in told["unschedulable"]["message"]


def test_a_template_that_nobody_made_is_said(line: CommandLine) -> None:
    """The Pod waits for it."""
    asks = user("a", "t", of="resourceClaimTemplateName")
    told = decided(line, *pure(), device_class(), asks)["a"]

    assert 'resourceclaimtemplate "t" not found' in told["unschedulable"]["message"]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        pytest.param(asking(1, "device.driver.startsWith('g')"), "selector device.d", id="CEL"),
        pytest.param(asking(1, adminAccess=True), "adminAccess", id="an administrator's access"),
        pytest.param(asking(allocationMode="All"), "allocationMode", id="all devices"),
        pytest.param(asking(capacity={"requests": {"memory": "1Gi"}}), "capacity", id="a share"),
        pytest.param(
            asking(deviceClassName=["x"]), "deviceClassName: expected a text", id="a strange class"
        ),
        pytest.param(
            {"devices": {"requests": [{"name": "g", "firstAvailable": []}]}},
            "firstAvailable",
            id="a list of alternatives",
        ),
        pytest.param(
            asking(derivedAttributes=[{"name": "derived/numa", "expression": "0"}]),
            "request g: derivedAttributes",
            id="derived attributes of 1.38",
        ),
        pytest.param(
            {"devices": {**asking()["devices"], "score": {}}}, "claim ml/x: score", id="a new word"
        ),
        pytest.param(
            asking(tolerations=[{"key": "k", "operator": "Exists", "until": "x"}]),
            "request g: tolerations: until",
            id="a new word of a toleration",
        ),
    ],
)
def test_what_is_beyond_us_is_not_decided(line: CommandLine, spec: Object, why: str) -> None:
    """The Pod stays where it is, with the name of the field; others are decided."""
    objects = [*pure(), device_class(), waiting("x", spec), waiting("y")]
    found = decided(line, *objects, user("a", "x"), user("b", "y"))

    said = found["a"]["unschedulable"]["message"]
    assert said.startswith("spec.resourceClaims: not decided: ")
    assert why in said
    assert (found["a"]["node"], cards(found["b"])) == (None, ["GPU-n1-0"])
    answer = line.run("why", "ml/a", written(line, [*objects, user("a", "x")]))
    assert answer.out.startswith("ml/a is not decided: spec.resourceClaims: "), answer.out


@pytest.mark.parametrize(
    "objects",
    [
        pytest.param([node("n1")], id="no object of claims in the input"),
        pytest.param(
            [*pure(), device_class(), waiting("x")], id="it asks for a card of its own besides"
        ),
    ],
)
def test_claims_that_nobody_can_judge_leave_their_pod_where_it_is(
    line: CommandLine, objects: list[Object]
) -> None:
    """No node takes it, as if it had asked for nothing."""
    asks = user("a", "x")
    asks["spec"]["containers"] = [container(limits={"nvidia.com/gpu": 1})]
    found = decided(line, *objects, asks)

    assert found["a"]["unschedulable"]["message"].startswith("spec.resourceClaims: not decided: ")


def test_a_plain_pod_does_not_fit_where_a_claim_before_it_has_the_card(line: CommandLine) -> None:
    """What would help is told beside those that come first."""
    own = gpu_device(0)
    sliced = [card("gpu-0", own["id"])]
    plain = pod(container(limits={"nvidia.com/gpu": 1}), name="plain", uid="p", namespace="ml")
    objects = [node("n1"), device(own), resource_slice(sliced, node="n1"), device_class()]
    objects += [waiting("mine"), user("a", "mine"), plain]
    decided(line, *objects)
    answer = line.run("why", "ml/plain", written(line, objects))

    assert "decided after 1 Pod that waits too: ml/a on n1" in answer.out
    assert "now it would fit" not in answer.out


@pytest.mark.parametrize("told", ["x", ["x"], [{"name": ["x"]}]])
def test_a_status_that_cant_be_read_is_not_decided(line: CommandLine, told: object) -> None:
    """It is no end of the run."""
    asks = user("a", "x")
    asks["status"] = {"phase": "Pending", "resourceClaimStatuses": told}
    found = decided(line, *pure(), device_class(), waiting("x"), asks)

    said = found["a"]["unschedulable"]["message"]
    assert "esourceClaimStatuses" in said or "name: expected a text" in said


def test_a_request_of_no_class_is_refused(line: CommandLine) -> None:
    """The API would not take it."""
    found = decided(
        line, *pure(), device_class(), waiting("x", asking(deviceClassName="")), user("a", "x")
    )

    assert "device class  does not exist" in found["a"]["unschedulable"]["message"]


def test_a_run_with_claims_goes_on_where_it_was_cut(line: CommandLine) -> None:
    """The same inputs come to the same events."""
    claims = [waiting(f"claim-{name}") for name in "abc"]
    pods = [user(name, f"claim-{name}") for name in "abc"]
    path = written(line, [*pure(), device_class(), *claims, *pods])
    first = line.ask("simulate", path, *NOW, "-o", "json")
    again = line.ask("simulate", path, *NOW, "--resume", "-o", "json")

    assert (first.code, again.code) == (0, 0), again.err
    assert json.loads(first.out)["placements"] == json.loads(again.out)["placements"]


def test_cards_that_no_claim_is_decided_on_are_got_by_nobody_for_sure(line: CommandLine) -> None:
    """A card without an id has no account, so that nobody says who could get it."""
    slices = sliced("n1", 3)
    slices["spec"]["devices"] = slices["spec"]["devices"][1:3]
    slices["spec"]["devices"][0].pop("attributes")
    path = line.ledger.parent / "in.json"
    path.write_text(json.dumps({"kind": "List", "items": [node("n1"), slices]}))
    told = json.loads(line.run("map", str(path), "-o", "json").out)["summary"]
    assert told["gettable"] == {"min": 1, "max": 2}
