from __future__ import annotations

from typing import Final

import pytest

from ledger.domain.vocabulary import Vocabulary
from tests.support.objects import Object, container, pod, sidecar
from tests.support.requests_to_admit import MANAGED, UNMANAGED, change, creation, judged, rules_of
from webhook.decide.facts import NamespaceFacts
from webhook.decide.mutating.pod import mutated
from webhook.decide.settings import DEFAULT_ADMISSION, AdmissionSettings
from webhook.decide.validating.validate import validate

NAME = "NVIDIA_VISIBLE_DEVICES"
CARD = {"koordinator.sh/gpu": 100}


def by_hand(value: str) -> Object:
    """Return an entry with a value."""
    return {"name": NAME, "value": value}


def by_reference(place: str, key: str = "visible") -> Object:
    """Return an entry that reads an annotation of ours."""
    path = f"metadata.annotations['tenure.sh/{key}.{place}']"
    return {"name": NAME, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def holder(*env: Object) -> Object:
    """Return a Pod of one container with a card and this environment."""
    return pod(container(limits=CARD, env=list(env)))


@pytest.mark.parametrize("value", ["void", "none"])
def test_seeing_nothing_is_anyones_to_ask(value: str) -> None:
    """`void` and `none` are allowed."""
    assert judged(holder(by_hand(value))).allowed


HAND: Final = {
    "all": by_hand("all"),
    "an index": by_hand("0"),
    "a UUID": by_hand("GPU-5d0f6c1e-0b7a-4f0e-9b1e-2f5b7c1d9a44"),
    "the empty text": by_hand(""),
    "nothing at all": {"name": NAME},
}


@pytest.mark.parametrize("entry", HAND.values(), ids=HAND)
def test_cards_by_hand_are_refused(entry: Object) -> None:
    """On a container that holds devices; the nearest legal value is named."""
    answer = judged(holder({"name": "OTHER", "value": "all"}, entry))

    assert rules_of(answer) == {"spec.containers[0].env[1].value": "VisibleDevices"}
    assert "nearest legal value void" in answer.causes[0].message


REFERENCES: Final = {
    "another container's cards": by_reference("1"),
    "an init container's cards": by_reference("init-0"),
    "the other annotation": by_reference("0", "allocated"),
    "a label": {"name": NAME, "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}},
    "a config map": {"name": NAME, "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}},
}


@pytest.mark.parametrize("entry", REFERENCES.values(), ids=REFERENCES)
def test_only_the_containers_own_annotation_may_be_read(entry: Object) -> None:
    """A reference to anything else is as good as a value by hand."""
    answer = judged(holder(entry))

    assert rules_of(answer) == {"spec.containers[0].env[0].valueFrom": "VisibleDevices"}


def test_each_container_reads_its_own() -> None:
    """App containers by index, sidecars and init containers by theirs."""
    body = pod(
        container("a", limits=CARD, env=[by_reference("0")]),
        container("b", limits=CARD, env=[by_reference("1")]),
        init=[sidecar("s", limits=CARD, env=[by_reference("init-0")])],
    )

    assert judged(body).allowed


def test_of_two_entries_neither_may_show_a_card() -> None:
    """The runtime takes the last of them."""
    answer = judged(holder(by_reference("0"), by_hand("all")))

    assert rules_of(answer) == {"spec.containers[0].env[1].value": "VisibleDevices"}


def test_a_container_without_devices_beside_one_with_may_not_either() -> None:
    """It would see the cards of others."""
    body = pod(container("a", limits=CARD), container("b", env=[by_hand("all")]))

    assert rules_of(judged(body)) == {"spec.containers[1].env[0].value": "VisibleDevices"}


def test_a_pod_without_gpus_is_warned() -> None:
    """A monitor of all cards is legitimate on nodes that are not ours; nothing is refused."""
    answer = judged(pod(container(env=[by_hand("all")])))

    assert answer.allowed
    assert any("asks for no GPU" in text for text in answer.warnings)


@pytest.mark.parametrize("mode", ["env", "plugin", "gpushare"])
def test_what_our_own_webhook_writes_is_allowed(mode: str) -> None:
    """Both ways of telling a container its devices pass the check."""
    settings = AdmissionSettings(vocabulary=Vocabulary(slot_mode=mode))
    body = pod(
        container("a", limits={"nvidia.com/gpu": 2}),
        container("b"),
        init=[container("i", limits={"nvidia.com/gpu": 1})],
    )

    after = dict(mutated(body, settings, NamespaceFacts(managed=True), namespace="ml"))

    assert judged(after, settings).allowed
    assert after != body


@pytest.mark.parametrize(
    ("limits", "nearest"),
    [
        pytest.param({"tenure.sh/slot": 1}, 0, id="one without devices"),
        pytest.param({"tenure.sh/slot": 1000}, 0, id="a thousand"),
        pytest.param({"tenure.sh/slot": 2, **CARD}, 1, id="two with a card"),
    ],
)
def test_slots_are_not_taken_by_hand(limits: Object, nearest: int) -> None:
    """Design section 8: one for each container with devices; in every namespace."""
    for facts in (MANAGED, UNMANAGED):
        body = pod(container(limits=limits), schedulerName="tenure")
        answer = validate(creation(body), facts=facts)

        field = "spec.containers[0].resources.requests[tenure.sh/slot]"
        assert rules_of(answer)[field] == "SlotByHand"
        (cause,) = [cause for cause in answer.causes if cause.field == field]
        assert cause.message.endswith(f"nearest legal value {nearest}")


@pytest.mark.parametrize("limits", [{"tenure.sh/slot": 0}, {"tenure.sh/slot": 1, **CARD}, CARD])
def test_ones_own_slot_is_taken(limits: Object) -> None:
    """None, or the one that our webhook would give it."""
    assert judged(pod(container(limits=limits), schedulerName="tenure")).allowed


def mounting(made: Object, path: str) -> Object:
    """Return the Pod with a volume mount at this path in its last container."""
    section = "ephemeralContainers" if "ephemeralContainers" in made["spec"] else "containers"
    made["spec"][section][-1]["volumeMounts"] = [{"name": "v", "mountPath": path}]
    return made


MOUNT = "/var/run/nvidia-container-devices/all"
CDI = {"cdi.k8s.io/x": "nvidia.com/gpu=all"}


@pytest.mark.parametrize("path", [MOUNT, "/var/run/.//nvidia-container-devices/cdi/a/b/c"])
def test_a_mount_shows_a_container_no_cards(path: str) -> None:
    """The NVIDIA runtime takes a list from mounts too, if it is set up so."""
    field = "spec.containers[0].volumeMounts[0].mountPath"
    assert rules_of(judged(mounting(pod(container(limits=CARD)), path))) == {
        field: "VisibleDevices"
    }
    said = judged(mounting(pod(container(limits={"cpu": 1})), path))
    assert said.allowed
    assert any(field in text for text in said.warnings)
    assert judged(mounting(pod(container(limits=CARD)), "/data")).allowed
    debug = change(
        pod(container(limits=CARD)), mounting(ephemeral(), path), subresource="ephemeralcontainers"
    )
    assert list(rules_of(validate(debug, facts=MANAGED)).values()) == ["VisibleDevices"]


def test_cdi_devices_are_not_named_by_hand() -> None:
    """Neither at first nor later; what was there before stays."""
    holder, named = pod(container(limits=CARD)), pod(container(limits=CARD), annotations=CDI)
    plain = judged(pod(container(limits={"cpu": 1}), annotations=CDI))

    refused = {"metadata.annotations[cdi.k8s.io/x]": "VisibleDevices"}
    assert rules_of(judged(named)) == refused
    assert rules_of(validate(change(holder, named), facts=MANAGED)) == refused
    assert validate(change(named, named), facts=MANAGED).allowed
    assert plain.allowed
    assert any("cdi.k8s.io/x" in text for text in plain.warnings)


def ephemeral(*env: Object, name: str = "debug") -> Object:
    """Return a Pod with an ephemeral container of this environment."""
    debug = {"name": name, "env": list(env)}
    return pod(container(limits=CARD), schedulerName="tenure", ephemeralContainers=[debug])


@pytest.mark.parametrize("entry", [*HAND.values(), by_reference("0")])
def test_an_ephemeral_container_sees_nothing(entry: Object) -> None:
    """Ephemeral ones too get `void`."""
    request = change(
        pod(container(limits=CARD)), ephemeral(entry), subresource="ephemeralcontainers"
    )
    answer = validate(request, DEFAULT_ADMISSION, MANAGED)

    assert list(rules_of(answer).values()) == ["VisibleDevices"]
    assert answer.causes[0].field.startswith("spec.ephemeralContainers[0].env[0]")


@pytest.mark.parametrize("env", [[], [by_hand("void")], [by_hand("none")]])
def test_an_ephemeral_container_may_be_blind(env: list[Object]) -> None:
    """With `void` or `none`, or without the variable, which the mutating webhook adds."""
    request = change(
        pod(container(limits=CARD)), ephemeral(*env), subresource="ephemeralcontainers"
    )

    assert validate(request, DEFAULT_ADMISSION, MANAGED).allowed


def test_ephemeral_containers_that_are_there_stay() -> None:
    """They can't be changed any more, so a second one can still be added."""
    old, new = ephemeral(by_hand("all")), ephemeral(by_hand("all"))
    new["spec"]["ephemeralContainers"].append({"name": "second", "env": [by_hand("void")]})

    assert validate(change(old, new, subresource="ephemeralcontainers"), facts=MANAGED).allowed


def test_ephemeral_containers_of_others_are_theirs() -> None:
    """A Pod that is not ours is not looked into."""
    new = pod(ephemeralContainers=[{"name": "debug", "env": [by_hand("all")]}])

    assert validate(change(pod(), new, subresource="ephemeralcontainers"), facts=UNMANAGED).allowed
