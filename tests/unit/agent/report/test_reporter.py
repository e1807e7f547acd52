"""What is written of a node, in which order, and what a failure keeps from being written."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agent.decide.node_cpus import FoundCpus
from agent.discover.machine import Discovery, Fault, Kind
from agent.report.reporter import DEVICES, Reported, Reporter
from agent.report.settle import MANAGER
from certs.ports import ApiError, ConflictError
from tests.support.found_cpus import found_cpus, holding
from tests.support.machines_found import TWO_CARDS
from tests.support.topologies import MACHINE_X

NODES = "/api/v1/nodes"
NODE, DEVICE = f"{NODES}/n1", f"{DEVICES}/n1"
TOPOLOGY = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/n1"
CPUS = found_cpus(MACHINE_X)
ALL = (DEVICE, f"{DEVICE}/status", NODE, f"{NODE}/status")


@dataclass(slots=True)
class Api:
    """
    An API server that takes whatever is applied as it stands.

    Attributes:
        fails: path -> what is raised there.
        refuses: paths to which nothing can be applied.
        conflicts: paths at which somebody else is always faster.
        applied: path, force and body of every call.
    """

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    fails: dict[str, Exception] = field(default_factory=dict)
    refuses: set[str] = field(default_factory=set)
    conflicts: set[str] = field(default_factory=set)
    applied: list[tuple[str, bool, Mapping[str, Any]]] = field(default_factory=list)

    async def read(self, path: str) -> Mapping[str, Any] | None:
        """Return an object."""
        self._fail(path)
        return self.objects.get(path)

    async def apply(
        self, path: str, body: Mapping[str, Any], *, manager: str, force: bool
    ) -> Mapping[str, Any]:
        """Take what is applied, and note that it is ours."""
        assert manager == MANAGER
        self.applied.append((path, force, body))
        self._fail(path)
        if path in self.refuses:
            raise ApiError("there is nothing to apply it to", status=404)
        if path in self.conflicts:
            raise ConflictError("changed meanwhile")
        whole = path.removesuffix("/status")
        old = self.objects.setdefault(whole, {"metadata": {}})
        metadata = {**old["metadata"], **body["metadata"]}
        said = [one["metadata"].get("annotations", {}) for one in (old, body)]
        metadata["annotations"] = {key: text for one in said for key, text in one.items()}
        metadata["resourceVersion"] = str(len(self.applied))
        self.objects[whole] = {**old, **body, "metadata": metadata}
        return self.objects[whole]

    def _fail(self, path: str) -> None:
        if path in self.fails:
            raise self.fails[path]


def api() -> Api:
    """Return an API server with a Node."""
    node = {"metadata": {"name": "n1", "uid": "u", "resourceVersion": "0"}}
    return Api(objects={NODE: node})


def reporter(objects: Api) -> Reporter:
    """Return a reporter whose clock stands."""
    return Reporter(objects=objects, node_name="n1", clock=lambda: 0.0, now=lambda: "2026")


def reported(
    made: Reporter, found: Discovery = TWO_CARDS, cpus: FoundCpus | None = None
) -> Reported:
    """Report once."""
    return asyncio.run(made.report(found, (), cpus=cpus))


def reasons(report: Reported) -> list[str]:
    """Return what is wrong."""
    return [problem.reason for problem in report.problems]


def test_all_is_written_once_the_device_first() -> None:
    """Without the object the Node's numbers would be read as cards without ids."""
    objects = api()
    made = reporter(objects)

    assert reported(made) == Reported(written=ALL)
    assert reported(made) == Reported()
    assert [body["metadata"].get("resourceVersion") for _, _, body in objects.applied] == [
        None,
        "1",
        "0",
        "3",
    ]


def test_only_what_differs_is_written() -> None:
    """A card that closes changes the object and the numbers, no label."""
    objects = api()
    made = reporter(objects)
    reported(made)
    first, second = TWO_CARDS.cards
    ill = replace(first, faults=(Fault(reason="Xid79"),))

    assert reported(made, replace(TWO_CARDS, cards=(ill, second))).written == (
        DEVICE,
        f"{NODE}/status",
    )


def test_a_part_that_fails_keeps_no_other_from_being_written() -> None:
    """And is written in the next round."""
    objects = api()
    made = reporter(objects)
    objects.fails = {f"{DEVICE}/status": ConflictError("changed meanwhile")}
    first = reported(made)
    assert (first.written, reasons(first)) == ((DEVICE, NODE, f"{NODE}/status"), ["Unreported"])
    objects.fails = {}

    assert reported(made).written == (f"{DEVICE}/status",)


def test_without_the_api_nothing_is_written_and_it_is_said() -> None:
    """It goes on in the next round."""
    objects = api()
    made = reporter(objects)
    objects.fails = {NODE: ApiError("the API did not answer")}
    assert (reported(made).written, reasons(reported(made))) == ((), ["Unreported"])
    objects.fails = {}

    assert reported(made).written == ALL


def test_a_node_that_is_not_there_gets_nothing() -> None:
    """An object without its owner would stay for ever."""
    objects = Api()

    assert reasons(reported(reporter(objects))) == ["NodeAbsent"]
    assert not objects.applied


def test_a_cluster_without_the_kind_is_said() -> None:
    """The Node's own fields are written."""
    objects = api()
    objects.refuses = {DEVICE, f"{DEVICE}/status"}
    report = reported(reporter(objects))

    assert reasons(report) == ["NoDeviceKind", "NoDeviceKind"]
    assert report.written == (NODE, f"{NODE}/status")


def test_a_kind_without_topologies_gets_the_rest() -> None:
    """Koordinator's release has no such field; it is asked for once, and said for as long."""
    objects = api()
    made = reporter(objects)
    refusal = ApiError(".spec.topologies: field not declared in schema", status=500)

    class Strict(Api):
        """Refuses the field."""

        async def apply(
            self, path: str, body: Mapping[str, Any], *, manager: str, force: bool
        ) -> Mapping[str, Any]:
            """Refuse what the kind does not have."""
            if "topologies" in body.get("spec", {}):
                raise refusal
            return await Api.apply(self, path, body, manager=manager, force=force)

    strict = Strict(objects=objects.objects)
    made = reporter(strict)
    first = reported(made)

    assert (first.written, reasons(first)) == (ALL, ["FieldNotKnown"])
    assert "topologies" not in strict.objects[DEVICE]["spec"]
    assert reported(made) == Reported(problems=first.problems)


def test_a_foreign_manager_is_left_and_named() -> None:
    """Who had the object before us keeps it."""
    objects = api()
    koordlet = {
        "manager": "koordlet",
        "operation": "Update",
        "fieldsV1": {"f:spec": {"f:devices": {}}},
    }
    objects.objects[DEVICE] = {
        "metadata": {"name": "n1", "managedFields": [koordlet]},
        "spec": {"devices": []},
    }
    report = reported(reporter(objects))

    assert DEVICE not in report.written
    assert reasons(report) == ["ForeignFieldManager"]
    assert "koordlet" in report.problems[0].message


def test_somebody_who_edits_again_and_again_is_left_after_a_while() -> None:
    """Three times taken back within ten minutes, then said; tried again when that is over."""
    objects = api()
    time = [0.0]
    made = Reporter(objects=objects, node_name="n1", clock=lambda: time[0], now=lambda: "2026")
    reported(made)

    def edited() -> Reported:
        edit = {
            "manager": "kubectl-edit",
            "operation": "Update",
            "fieldsV1": {"f:spec": {"f:devices": {}}},
        }
        objects.objects[DEVICE]["spec"] = {**objects.objects[DEVICE]["spec"], "devices": []}
        objects.objects[DEVICE]["metadata"]["managedFields"] = [edit]
        return reported(made)

    for _ in range(3):
        assert edited().written == (DEVICE,)
        assert objects.applied[-1][:2] == (DEVICE, True)
    assert (edited().written, reasons(edited())) == ((), ["ForeignFieldManager"])
    time[0] = 601.0
    assert edited().written == (DEVICE,)


def test_what_was_found_wrong_is_handed_on() -> None:
    """The machine's problems beside those of writing."""
    found = Discovery(unknown=(Kind.GPU,), problems=(Fault(reason="NoDriver"),))

    assert reasons(reported(reporter(api()), found)) == ["NoDriver"]


def test_who_holds_what_is_not_told_where_nobody_knows() -> None:
    """An empty list would say that nobody does."""
    report = asyncio.run(reporter(api()).report(TWO_CARDS))

    assert report.written == (DEVICE, NODE, f"{NODE}/status")


def test_a_card_is_declared_whole_once_the_object_says_that_it_was_heard() -> None:
    """Else the same words would open it again, whatever comes meanwhile."""
    objects, now = api(), ["2026"]
    made = Reporter(objects=objects, node_name="n1", clock=lambda: 0.0, now=lambda: now[0])
    first, second = TWO_CARDS.cards
    ill = replace(TWO_CARDS, cards=(replace(first, faults=(Fault(reason="Xid79"),)), second))
    reported(made, ill)
    word = {"tenure.sh/recovered": f"{first.uuid}@2026"}
    objects.objects[DEVICE]["metadata"]["annotations"] |= word

    assert reported(made, ill).recovered == ()
    now[0], objects.conflicts = "2027", {DEVICE}
    assert reported(made, ill).recovered == ()
    objects.conflicts = set()
    assert reported(made, ill).recovered == (first.uuid,)
    assert reported(made, ill) == Reported()


def test_a_node_that_became_mixed_offers_none_of_its_cards() -> None:
    """They are the vendor's plugin's, whether they are cut by now or not."""
    before = api()
    reported(reporter(before))
    objects = api()
    objects.objects[DEVICE] = before.objects[DEVICE]
    objects.objects[NODE]["metadata"]["labels"] = {"nvidia.com/mig.strategy": "mixed"}

    reported(reporter(objects))

    status = objects.objects[NODE]["status"]
    for section in (status["capacity"], status["allocatable"]):
        assert set(section) == {"koordinator.sh/fpga", "koordinator.sh/rdma"}


def test_nothing_is_written_to_the_node_of_another_machine() -> None:
    """An agent that was told a wrong name; one id alone may differ, as in a container."""
    ours = {"systemUUID": "A-B-C", "machineID": "0123", "bootID": "second"}
    for info, other in (
        ({**ours, "systemUUID": "d", "machineID": "4567"}, True),
        ({**ours, "machineID": "4567"}, False),
        ({**ours, "systemUUID": "d"}, False),
        ({"systemUUID": "d", "machineID": ""}, False),
        (ours, False),
    ):
        objects = api()
        objects.objects[NODE]["status"] = {"nodeInfo": info}

        report = reported(reporter(objects))

        assert (reasons(report) == ["OtherMachine"]) is other
        assert bool(objects.applied) is not other


def test_the_cpus_are_written_last_and_once() -> None:
    """In an object of their own; who holds what may change nothing else."""
    objects = api()
    made = reporter(objects)
    assert reported(made, cpus=CPUS).written == (*ALL, TOPOLOGY)
    assert reported(made, cpus=CPUS) == Reported()
    first = objects.objects[TOPOLOGY]["zones"][0]
    cards = [one for one in first["resources"] if one["name"] == "koordinator.sh/gpu-core"]
    assert [one["allocatable"] for one in cards] == ["100"], "one of two cards sits there"
    held = [holding("a", "2-3")]
    report = asyncio.run(made.report(TWO_CARDS, held, cpus=CPUS))
    assert report.written == (TOPOLOGY,)


def test_no_cpus_are_written_unasked_or_where_nobody_knows_who_holds_them() -> None:
    """A pool with somebody's CPUs in it would be a lie."""
    objects = api()
    reported(reporter(objects))
    asyncio.run(reporter(objects).report(TWO_CARDS, None, cpus=CPUS))
    assert TOPOLOGY not in objects.objects


def test_an_object_of_somebody_elses_is_left_whole_and_named() -> None:
    """Also while it says what we would: two would write it from then on."""
    objects = api()
    reported(reporter(objects), cpus=CPUS)
    koordlet = {
        "manager": "koordlet",
        "operation": "Update",
        "fieldsV1": {"f:metadata": {"f:labels": {"f:app.kubernetes.io/managed-by": {}}}},
    }
    objects.objects[TOPOLOGY]["metadata"]["managedFields"] = [koordlet]
    for there in (objects.objects[TOPOLOGY], {"metadata": {"managedFields": [koordlet]}}):
        objects.objects[TOPOLOGY] = there
        report = reported(reporter(objects), cpus=CPUS)
        assert (report.written, reasons(report)) == ((), ["ForeignFieldManager"])
        assert f"{TOPOLOGY}: written by koordlet" in report.problems[0].message


def test_what_keeps_cpus_from_being_written_keeps_nothing_else() -> None:
    """No kind, no right, no answer, or a Node whose own reservation can't be read."""
    for failure, reason in (
        (ApiError("forbidden", status=403), "Unreported"),
        (ConflictError("changed meanwhile"), "Unreported"),
    ):
        objects = api()
        objects.fails = {TOPOLOGY: failure}
        report = reported(reporter(objects), cpus=CPUS)
        assert (report.written, reasons(report)) == (ALL, [reason])
    objects = api()
    objects.refuses = {TOPOLOGY}
    report = reported(reporter(objects), cpus=CPUS)
    assert (report.written, reasons(report)) == (ALL, ["NoTopologyKind"])
    objects = api()
    annotations = {"node.koordinator.sh/reservation": "{"}
    objects.objects[NODE]["metadata"]["annotations"] = annotations
    report = reported(reporter(objects), cpus=CPUS)
    assert (report.written, reasons(report)) == (ALL, ["CPUsUnknown"])
