from __future__ import annotations

from ledger.domain.request.asked import containers_on
from tests.support.cards import need


def named(*users: list[str]) -> list[list[str]]:
    """Return the lists given, for one line per expectation."""
    return list(users)


def test_app_containers_take_disjoint_devices_in_spec_order() -> None:
    """Design section 3: the first container the first devices, the next the next."""
    needs = [need("a", "0", gpu=2), need("b", "1", gpu=1)]

    users = containers_on(needs, "gpu", 3)

    assert [[use.name for use in on] for on in users] == named(["a"], ["a"], ["b"])


def test_a_sidecar_has_devices_of_its_own() -> None:
    """A sidecar runs beside the app containers."""
    needs = [need("s", "init-0", "sidecar", gpu=1), need("a", "0", gpu=1)]

    users = containers_on(needs, "gpu", 2)

    assert [[use.name for use in on] for on in users] == named(["s"], ["a"])


def test_an_init_container_reuses_the_first_devices() -> None:
    """It has ended when the app containers start."""
    needs = [need("i", "init-0", "init", gpu=2), need("a", "0", gpu=1), need("b", "1", gpu=2)]

    users = containers_on(needs, "gpu", 3)

    assert [[use.name for use in on] for on in users] == named(["i", "a"], ["i", "b"], ["b"])


def test_an_init_container_leaves_earlier_sidecars_alone() -> None:
    """max(1 + 1, 1 + 2) = 3 devices: the sidecar's, and two that the init container reuses."""
    needs = [
        need("s", "init-0", "sidecar", gpu=1),
        need("i", "init-1", "init", gpu=2),
        need("a", "0", gpu=1),
    ]

    users = containers_on(needs, "gpu", 3)

    assert [[use.name for use in on] for on in users] == named(["s"], ["i", "a"], ["i"])


def test_parts_of_one_device_name_nobody() -> None:
    """Two containers with 50 each of one NIC: the whole Pod shares it."""
    needs = [need("a", "0", rdma=1), need("b", "1", rdma=1)]

    assert containers_on(needs, "rdma", 1) == [[]]


def test_other_types_are_other_devices() -> None:
    """A container's GPUs say nothing about its NICs."""
    needs = [need("a", "0", gpu=2), need("b", "1", rdma=1)]

    users = containers_on(needs, "rdma", 1)

    assert [[use.name for use in on] for on in users] == named(["b"])
