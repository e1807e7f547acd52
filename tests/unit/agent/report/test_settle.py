"""Who wrote a field decides whether it is written again, taken back, or left."""

from __future__ import annotations

from typing import Any, Final

import pytest

from agent.report.settle import MANAGER, REPAIRS_MAX, Step, settle

WANT: Final[dict[str, Any]] = {
    "metadata": {"name": "n1", "labels": {"a/model": "T4"}},
    "spec": {"devices": [{"id": "x"}]},
}
FIELDS: Final = {
    "f:metadata": {"f:labels": {"f:a/model": {}}},
    "f:spec": {"f:devices": {}},
}
STATUS: Final[dict[str, Any]] = {
    "status": {"capacity": {"a/gpu": "8"}, "allocatable": {"a/gpu": "8"}}
}


def entry(
    manager: str, fields: dict[str, Any], operation: str = "Update", subresource: str = ""
) -> dict[str, Any]:
    """Return an entry of `managedFields`."""
    part = {"subresource": subresource} if subresource else {}
    return {"manager": manager, "operation": operation, "fieldsV1": fields, **part}


OURS: Final = entry(MANAGER, FIELDS, "Apply")


def there(*managed: dict[str, Any], **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return the object as it is."""
    labels = changes.pop("labels", {"a/model": "T4"})
    return {
        "metadata": {"name": "n1", "labels": labels, "managedFields": list(managed)},
        "spec": {"devices": [{"id": "x"}], **changes},
    }


def amounts(capacity: str, allocatable: str, *managed: dict[str, Any]) -> dict[str, Any]:
    """Return a Node with these quantities."""
    return {
        "metadata": {"managedFields": list(managed)},
        "status": {"capacity": {"a/gpu": capacity}, "allocatable": {"a/gpu": allocatable}},
    }


def quantities(*names: str) -> dict[str, Any]:
    """Return the fields of these maps."""
    return {"f:status": {f"f:{name}": {"f:a/gpu": {}} for name in names}}


EDIT: Final = entry("kubectl-edit", {"f:spec": {"f:devices": {}}})


@pytest.mark.parametrize(
    ("now", "step", "managers"),
    [
        pytest.param(None, Step.APPLY, (), id="there is none"),
        pytest.param(there(OURS), Step.NOTHING, (), id="it says so"),
        pytest.param(there(EDIT), Step.NOTHING, (), id="somebody else says the same"),
        pytest.param(there(OURS, devices=[]), Step.APPLY, (), id="we said something else before"),
        pytest.param(there(OURS, labels={}), Step.APPLY, (), id="somebody took it out"),
        pytest.param(there(OURS, other=1), Step.NOTHING, (), id="somebody added their own"),
        pytest.param(
            there(OURS, EDIT, devices=[]), Step.REPAIR, ("kubectl-edit",), id="edited by a person"
        ),
        pytest.param(there(EDIT, devices=[]), Step.STOP, ("kubectl-edit",), id="theirs before us"),
        pytest.param(
            there(OURS, entry("koordlet", FIELDS, "Apply"), devices=[]),
            Step.STOP,
            ("koordlet",),
            id="somebody applies it",
        ),
        pytest.param(
            there(entry(MANAGER, FIELDS), devices=[]),
            Step.STOP,
            (MANAGER,),
            id="an update under our name is not ours",
        ),
        pytest.param(
            there(OURS, entry("x", FIELDS, subresource="status"), devices=[]),
            Step.APPLY,
            (),
            id="who has another part does not matter",
        ),
    ],
)
def test_whose_field_it_is(
    now: dict[str, Any] | None, step: Step, managers: tuple[str, ...]
) -> None:
    """Written on difference alone; taken back from who edits; left to who keeps it."""
    settled = settle(WANT, now)

    assert (settled.step, settled.managers) == (step, managers)


def test_what_we_wrote_and_do_not_say_any_more_goes() -> None:
    """By applying the rest."""
    ours = entry(MANAGER, {**FIELDS, "f:spec": {"f:devices": {}, "f:topologies": {}}}, "Apply")
    settled = settle(WANT, there(ours, topologies={"gpu": []}))

    assert (settled.step, settled.paths) == (Step.APPLY, (("spec", "topologies"),))


def test_who_takes_a_field_back_again_and_again_keeps_it() -> None:
    """Two that repair each other would never end."""
    edited = there(OURS, EDIT, devices=[])

    assert settle(WANT, edited, repairs=REPAIRS_MAX - 1).step is Step.REPAIR
    assert settle(WANT, edited, repairs=REPAIRS_MAX).step is Step.STOP


def test_a_replaced_object_that_we_wrote_is_an_edit() -> None:
    """`kubectl replace` leaves no trace of us."""
    assert settle(WANT, there(EDIT, devices=[]), wrote=True).step is Step.REPAIR


@pytest.mark.parametrize(
    ("now", "step"),
    [
        pytest.param(
            amounts("8", "8", entry(MANAGER, quantities("capacity"), "Apply", "status")),
            Step.NOTHING,
            id="as it should be",
        ),
        pytest.param(
            amounts("8e0", "8000m", entry("x", quantities("capacity"), subresource="status")),
            Step.NOTHING,
            id="the same numbers in other words",
        ),
        pytest.param(
            amounts("8", "6", entry("kubelet", quantities("allocatable"), subresource="status")),
            Step.REPAIR,
            id="kubelet copied an older capacity",
        ),
        pytest.param(
            amounts(
                "0",
                "0",
                entry("kubelet", quantities("capacity", "allocatable"), "Update", "status"),
            ),
            Step.REPAIR,
            id="kubelet knows no plugin of that name",
        ),
        pytest.param(
            amounts("3", "3", entry("kubelet", quantities("capacity"), subresource="status")),
            Step.STOP,
            id="another plugin registered with kubelet",
        ),
        pytest.param(
            amounts("3", "3", entry("koord-manager", quantities("capacity"), "Update", "status")),
            Step.STOP,
            id="another controller",
        ),
    ],
)
def test_kubelet_copies_and_forgets_and_other_plugins_keep(now: dict[str, Any], step: Step) -> None:
    """A Node's quantities, of which kubelet writes allocatable by capacity."""
    assert settle(STATUS, now, subresource="status").step is step
    assert settle(STATUS, now, subresource="status", repairs=99).step is step


ZONES: Final[dict[str, Any]] = {
    "metadata": {"name": "n1", "labels": {"a/by": "us"}},
    "zones": [{"name": "node-0"}],
}
LABEL: Final[dict[str, Any]] = {"f:metadata": {"f:labels": {"f:a/by": {}}}}


def test_a_list_beside_spec_and_status_is_compared_and_kept_like_them() -> None:
    """The zones of a NodeResourceTopology; what we do not say of it is not ours."""
    other = {**ZONES, "zones": [], "attributes": []}
    settled = settle(ZONES, other)
    assert (settled.step, settled.paths) == (Step.APPLY, (("zones",),))
    rte = entry("topology-updater", {"f:zones": {}})
    other["metadata"] = {**ZONES["metadata"], "managedFields": [rte]}
    assert settle(ZONES, other).step is Step.STOP
    assert settle(ZONES, other, wrote=True).step is Step.REPAIR


@pytest.mark.parametrize(
    ("managed", "others"),
    [
        ([], ()),
        ([entry("kubectl", {"f:metadata": {"f:labels": {"f:a/other": {}}}})], ()),
        ([entry("koordlet", {"f:zones": {}}), entry("b", LABEL, "Apply")], ("b", "koordlet")),
        ([entry("koordlet", LABEL), entry(MANAGER, LABEL, "Apply")], ()),
        ([entry("koordlet", {"f:status": {}}, subresource="status")], ()),
    ],
    ids=[
        "nobody",
        "a label of no concern",
        "two that have fields of ours",
        "once it is ours too",
        "a status",
    ],
)
def test_who_writes_an_object_that_we_never_wrote_to(
    managed: list[dict[str, Any]], others: tuple[str, ...]
) -> None:
    """Also where it says the same as we would, and where we did write to one of that name."""
    there = {**ZONES, "metadata": {**ZONES["metadata"], "managedFields": managed}}
    for wrote in (True, False):
        settled = settle(ZONES, there, whole=True, wrote=wrote)
        assert settled.managers == others
        assert (settled.step is Step.STOP) is bool(others)
        assert settle(ZONES, there, wrote=wrote).step is Step.NOTHING
