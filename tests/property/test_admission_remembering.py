from __future__ import annotations

import json
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.errors import InputError
from tests.support.kube.pods import GPUSHARE, HALF, MGPU, WHOLE, pod
from webhook.decide.facts import NamespaceFacts
from webhook.decide.mutating.pod import mutate_pod
from webhook.decide.review import DEFAULT_LIMITS, decode_review, encode_review
from webhook.decide.settings import DEFAULT_ADMISSION
from webhook.decide.validating.validate import validate
from webhook.server.reading import needs_of, read_review
from webhook.server.remembering import Memory, cut_of, decided

DECISIONS = {"mutate": mutate_pod, "validate": validate}
MANAGED = NamespaceFacts(managed=True)
BAD = {"koordinator.sh/gpu-core": "150", "koordinator.sh/gpu-memory-ratio": "50"}
AMOUNTS: tuple[dict[str, str], ...] = (WHOLE, HALF, MGPU, GPUSHARE, BAD, {"cpu": "4"}, {})
WORDS = (
    "train-x7k2p", "train-q9w4z", "main", "void", "50", "team-a", "2", "none", "name",
    "LSR", "a/b", "", 'a"b', "kube-api-access-abcde", "kube-api-access-other", "another-name",
)  # fmt: skip
TIMES = ("2026-03-02T10:00:00Z", "2026-03-02T10:00:01Z", "2026-13-02T10:00:00Z", "soon", "")
words = st.sampled_from(WORDS)
times = st.sampled_from(TIMES)

memory = Memory()
"""One for all examples, so that each meets what the others have left."""


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Return a request to create a Pod, nearly as the API server writes it."""
    one = pod("", draw(st.sampled_from(AMOUNTS)))
    optional: dict[str, Any] = {
        "name": words,
        "generateName": words,
        "namespace": st.sampled_from(("team-a", "team-b")),
        "uid": words,
        "creationTimestamp": times,
    }
    metadata: dict[str, Any] = {
        key: draw(values) for key, values in optional.items() if draw(st.booleans())
    }
    for key, entries in (
        ("labels", {"koordinator.sh/qosClass": words, "app": words}),
        ("annotations", {"note": words, "scheduling.koordinator.sh/resource-spec": words}),
    ):
        chosen = {name: draw(value) for name, value in entries.items() if draw(st.booleans())}
        if chosen:
            metadata[key] = chosen
    if draw(st.booleans()):
        metadata["managedFields"] = [{"manager": draw(words), "time": draw(times)}]
    container = one["spec"]["containers"][0]
    if draw(st.booleans()):
        container["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": draw(words)}]
    if draw(st.booleans()):
        container["name"] = draw(words)
    if draw(st.booleans()):
        one["spec"]["volumes"] = [{"name": draw(words)}, {"name": draw(words)}]
    if draw(st.booleans()):
        one["spec"]["time"] = draw(times)
    request: dict[str, Any] = {
        "uid": draw(words) or "u",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
    }
    if draw(st.booleans()):
        request["name"] = draw(words)
    request |= {
        "namespace": "team-a",
        "operation": draw(st.sampled_from(("CREATE", "CREATE", "CREATE", "UPDATE"))),
        "userInfo": {"username": draw(st.sampled_from(("ada", "bob")))},
        "object": {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": one["spec"]},
        "oldObject": one,
    }
    if request["operation"] == "CREATE":
        del request["oldObject"]
    review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    return json.dumps(review, separators=(",", ":")).encode()


def fresh(hook: str, body: bytes, facts: NamespaceFacts) -> object:
    """Return the response by the careful way, or that the request can't be read."""
    try:
        request = decode_review(body)
    except InputError:
        return None
    answer = DECISIONS[hook](request, DEFAULT_ADMISSION, facts)
    return json.loads(json.dumps(encode_review(request, answer)))


def served(hook: str, body: bytes, facts: NamespaceFacts) -> object:
    """Return the response as the server finds it."""
    cut = cut_of(hook, body)
    known = memory.find(cut, DEFAULT_ADMISSION)
    if cut is not None and known is not None and known.facts == facts:
        return orjson.loads(known.response(cut.uid))
    try:
        request = read_review(body, DEFAULT_LIMITS)
    except InputError:
        return None
    answer = DECISIONS[hook](request, DEFAULT_ADMISSION, facts)
    decision, response = decided(request, needs_of(request), facts, answer)
    memory.keep(cut, request, decision, DEFAULT_ADMISSION, DEFAULT_LIMITS)
    return orjson.loads(response)


@given(body=bodies(), others=st.lists(bodies(), max_size=2), data=st.data())
def test_what_is_remembered_is_what_would_be_decided(
    body: bytes, others: list[bytes], data: st.DataObject
) -> None:
    """Whatever came before, and with any text of a request put in the place of any other."""
    for one in (body, body, *others, body):
        old, new = data.draw(words), data.draw(words)
        swapped = one.replace(json.dumps(old).encode(), json.dumps(new).encode())
        for hook in DECISIONS:
            for sent in (one, swapped, swapped):
                assert served(hook, sent, MANAGED) == fresh(hook, sent, MANAGED)


@given(body=bodies(), at=st.integers(0, 2_000), byte=st.integers(0, 255))
def test_a_byte_more_or_another_changes_nothing_about_that(body: bytes, at: int, byte: int) -> None:
    """The bytes that mark a cut are in no request that can be read."""
    at %= len(body)
    put = bytes([byte])
    for sent in (body, body, body[:at] + put + body[at + 1 :], body[:at] + put + body[at:]):
        assert served("validate", sent, MANAGED) == fresh("validate", sent, MANAGED)
