from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import orjson
import pytest

from tests.support.kube.pods import HALF, pod
from webhook.decide.facts import NamespaceFacts
from webhook.decide.mutating.pod import mutate_pod
from webhook.decide.review import DEFAULT_LIMITS
from webhook.decide.settings import DEFAULT_ADMISSION, AdmissionSettings
from webhook.server.reading import needs_of, read_review
from webhook.server.remembering import BODY_BYTES_MAX, Memory, cut_of, decided

MANAGED = NamespaceFacts(managed=True)


def body(
    name: str = "train-x7k2p",
    uid: str = "u-1",
    *,
    metadata: Mapping[str, object] | None = None,
    spec: Mapping[str, object] | None = None,
) -> bytes:
    """Return the request to create one of the Pods of a template, as the API server writes it."""
    one = pod(name, HALF)
    one["spec"] |= spec or {"volumes": [{"name": f"kube-api-access-{name[-5:]}"}]}
    fields = {"name": name, "uid": f"of-{name}", "creationTimestamp": "2026-03-02T10:00:00Z"}
    times = [{"manager": "kubectl", "time": "2026-03-02T10:00:00Z"}]
    request = {
        "uid": uid,
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "name": name,
        "namespace": "team-a",
        "operation": "CREATE",
        "userInfo": {"username": "ada"},
        "object": {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": fields | {"managedFields": times} | dict(metadata or {}),
            "spec": one["spec"],
        },
    }
    review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    return json.dumps(review, separators=(",", ":")).encode()


def meet(memory: Memory, sent: bytes, settings: AdmissionSettings = DEFAULT_ADMISSION) -> bool:
    """Decide on a request, or find it decided; tell which."""
    cut = cut_of("mutate", sent)
    if memory.find(cut, settings) is not None:
        return True
    keep(memory, sent, settings)
    return False


def keep(memory: Memory, sent: bytes, settings: AdmissionSettings) -> None:
    """Decide on a request by these settings, and have it remembered."""
    request = read_review(sent, DEFAULT_LIMITS)
    answer = mutate_pod(request, settings, MANAGED)
    decision, _ = decided(request, needs_of(request), MANAGED, answer)
    memory.keep(cut_of("mutate", sent), request, decision, settings, DEFAULT_LIMITS)


def test_the_third_pod_of_a_template_is_remembered() -> None:
    """The first is decided, the second shows what the template is; its answer is the third's."""
    memory = Memory()
    names = ("train-x7k2p", "train-q9w4z", "train-b8v6n", "train-zzzzz")
    assert [meet(memory, body(name)) for name in names] == [False, False, True, True]
    cut = cut_of("mutate", body("train-fffff", "u-9"))
    known = memory.find(cut, DEFAULT_ADMISSION)
    assert cut is not None
    assert known is not None
    response = orjson.loads(known.response(cut.uid))["response"]
    assert (cut.name, response["uid"], response["patchType"]) == ("train-fffff", "u-9", "JSONPatch")


def test_other_settings_make_everything_forgotten() -> None:
    """Even settings that are equal: they have been read anew."""
    memory = Memory()
    assert [meet(memory, body()) for _ in range(3)] == [False, False, True]
    again = replace(DEFAULT_ADMISSION)
    assert [meet(memory, body(), again) for _ in range(2)] == [False, True]
    for _ in range(2):
        keep(memory, body(metadata={"labels": {"app": "late"}}), DEFAULT_ADMISSION)
    assert len(memory) == 1, "a decision by the settings of before is not kept"


def test_the_memory_is_bounded_and_keeps_what_is_needed() -> None:
    """What was not asked for longest makes room."""
    memory = Memory(entries_max=2)
    template = {"labels": {"app": "a"}}
    for app in ("a", "b", "c"):
        for _ in range(2):
            meet(memory, body(metadata={"labels": {"app": app}}))
        meet(memory, body(metadata=template))
    assert len(memory) == 2
    assert meet(memory, body(metadata=template))
    assert not meet(memory, body(metadata={"labels": {"app": "b"}}))


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(body().replace(b"10:00:00Z", b"25:00:00Z"), id="no time"),
        pytest.param(body().replace(b'"ada"', b'"\xff"'), id="no text"),
        pytest.param(body(metadata={"annotations": {"a": "x" * BODY_BYTES_MAX}}), id="large"),
        pytest.param(b" " + body(), id="written otherwise"),
    ],
)
def test_what_is_not_as_the_api_server_writes_it_has_no_skeleton(sent: bytes) -> None:
    """It is decided anew each time."""
    assert cut_of("mutate", sent) is None


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"time": "2026-03-02T10:00:00Z"}, id="a time elsewhere"),
        pytest.param(
            {"nested": {"object": {"kind": "Pod", "apiVersion": "v1"}}}, id="an object elsewhere"
        ),
    ],
)
def test_a_time_that_may_mean_something_is_not_taken_for_one_that_does_not(
    spec: Mapping[str, object],
) -> None:
    """Only places whose role is known are cut out of what is remembered."""
    memory = Memory()
    found = [meet(memory, body(name, spec=spec)) for name in ("a-1", "a-2", "a-3")]
    assert found == [False, False, "time" not in spec]
