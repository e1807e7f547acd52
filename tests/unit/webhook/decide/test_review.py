from __future__ import annotations

import base64
import json
import time

import pytest

from ledger.domain.errors import FieldError, InputError
from tests.support.objects import Object, gpu_pod
from webhook.decide.answers import FORBIDDEN, AdmissionAnswer, PatchOperation, Refusal, refuse
from webhook.decide.review import (
    AdmissionRequest,
    ReviewLimits,
    User,
    decode_review,
    encode_review,
)

CAUSE = FieldError(field="spec.a", reason="FieldValueInvalid", message="Invalid value: 1: no")


def review(**changes: object) -> Object:
    """Return an AdmissionReview as the API server sends it; None leaves a field out."""
    request: Object = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
        "name": "p",
        "namespace": "ml",
        "operation": "CREATE",
        "userInfo": {"username": "alice", "uid": "1", "groups": ["dev"], "extra": {"k": ["v"]}},
        "object": gpu_pod({"nvidia.com/gpu": "1"}),
        "oldObject": None,
        "options": {"kind": "CreateOptions"},
        "dryRun": False,
        **changes,
    }
    kept = {key: value for key, value in request.items() if value is not None}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": kept}


def body(**changes: object) -> bytes:
    """Return it as bytes."""
    return json.dumps(review(**changes)).encode()


def test_a_review_is_read_whole() -> None:
    """Everything that a decision may depend on, and nothing else."""
    expected = AdmissionRequest(
        uid="705ab4f5-6393-11e8-b7cc-42010a800002",
        operation="CREATE",
        kind="Pod",
        resource="pods",
        namespace="ml",
        name="p",
        user=User(name="alice", groups=("dev",)),
        obj=gpu_pod({"nvidia.com/gpu": "1"}),
        options={"kind": "CreateOptions"},
    )

    assert decode_review(body()) == expected
    assert decode_review(body().decode()) == expected
    assert decode_review(review()) == expected


def test_an_update_of_a_subresource_is_read() -> None:
    """Both objects, and who asks without asking twice."""
    request = decode_review(
        body(
            operation="UPDATE",
            oldObject=gpu_pod({}),
            subResource="resize",
            dryRun=True,
            userInfo=None,
        )
    )

    assert (request.operation, request.subresource, request.dry_run) == ("UPDATE", "resize", True)
    assert request.old == gpu_pod({})
    assert request.user == User()


UNREADABLE: dict[str, tuple[object, str]] = {
    "empty": (b"", "not valid JSON"),
    "no JSON": (b"{", "not valid JSON"),
    "not UTF-8": (b'{"a": "\xff"}', "not UTF-8: byte=7"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
    "a list": (b"[]", "expected an AdmissionReview"),
    "a number": (b"1", "expected an AdmissionReview"),
    "null": (b"null", "expected an AdmissionReview"),
    "a key twice": (b'{"a": 1, "b": 2, "a": 3}', "a key is there twice: key='a'"),
    "a key twice, deep inside": (b'{"x": [{"y": 1, "y": 1}]}', "a key is there twice: key='y'"),
    "NaN": (b'{"a": NaN}', "NaN is not a JSON number"),
    "infinity": (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
    "out of range": (b'{"a": 1e999}', "a number is out of range: value=1e999"),
    "digits without end": (b'{"a": ' + b"9" * 5000 + b"}", "a number has too many digits"),
    "half a surrogate pair": (b'{"a": "\\ud800"}', "half a surrogate pair"),
    "half a surrogate pair in a key": (b'{"\\uDC00": 1}', "half a surrogate pair"),
    "another version": (
        body().replace(b"admission.k8s.io/v1", b"admission.k8s.io/v1beta1"),
        "apiVersion: expected admission.k8s.io/v1: value='admission.k8s.io/v1beta1'",
    ),
    "another kind": (body().replace(b"AdmissionReview", b"Review"), "kind: expected"),
    "no request": (
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"},
        "request.uid: missing",
    ),
    "no uid": (body(uid=None), "request.uid: missing"),
    "a uid that is no text": (body(uid=1), "request.uid: expected a text: value=1"),
    "no operation": (body(operation=None), "request.operation: not one of"),
    "an unknown operation": (body(operation="PATCH"), "value='PATCH'"),
    "no kind": (body(kind={}), "request.kind.kind: missing"),
    "a kind that is no object": (body(kind=[]), "request.kind: expected an object"),
    "groups that are no texts": (
        body(userInfo={"groups": [1]}),
        "request.userInfo.groups[0]: expected a text",
    ),
    "no object": (body(object=None), "request.object: missing"),
    "no old object": (body(operation="UPDATE"), "request.oldObject: missing"),
    "an object that is none": (body(object="x"), "request.object: expected an object"),
    "a dry run that is no flag": (body(dryRun="yes"), "request.dryRun: expected true or false"),
    "keys that are no texts": ({1: 2}, "expected a text as key: value=1"),
}


@pytest.mark.parametrize("case", UNREADABLE.values(), ids=UNREADABLE)
def test_what_is_no_review_is_an_input_error(case: tuple[object, str]) -> None:
    """With the field, and never anything else."""
    source, expected = case

    with pytest.raises(InputError) as caught:
        decode_review(source)

    assert expected in str(caught.value)


HOSTILE: dict[str, tuple[bytes, str]] = {
    "nested 100,000 times": (b"[" * 100_000, "too deep"),
    "nested 100,000 objects": (b'{"a":' * 100_000, "too deep"),
    "nested 70 times": (body(object={"a": json.loads("[" * 70 + "]" * 70)}), "too deep"),
    "a text of 3 MiB": (body(name="x" * (3 * 2**20)), "a text is too long"),
    "10,000 containers": (
        body(operation="UPDATE", oldObject={"spec": {"containers": [{"name": "x"}] * 10_000}}),
        "spec.containers: 10000 entries: admission decides on Pods of at most 250 in one list",
    ),
    "10,000 ephemeral containers": (
        body(operation="UPDATE", oldObject={"spec": {"ephemeralContainers": [{}] * 10_000}}),
        "spec.ephemeralContainers: 10000 entries",
    ),
    "10 MiB": (b" " * (10 * 2**20), "too large: bytes_max=8388608"),
    "a million keys, the last twice": (
        b'{"a":1,' + b",".join(b'"k%d":0' % n for n in range(400_000)) + b',"a":1}',
        "a key is there twice: key='a'",
    ),
}


@pytest.mark.parametrize("case", HOSTILE.values(), ids=HOSTILE)
def test_hostile_bodies_are_refused_in_bounded_time(case: tuple[bytes, str]) -> None:
    """Seconds of CPU are far more than any of them takes; a quadratic reader would need hours."""
    source, expected = case
    start = time.process_time()

    with pytest.raises(InputError) as caught:
        decode_review(source)

    assert expected in str(caught.value)
    assert time.process_time() - start < 10


def test_what_is_just_within_the_limits_is_read() -> None:
    """64 levels, 250 containers, a text of a mebibyte."""
    deep: object = []
    for _ in range(60):
        deep = [deep]

    assert decode_review(body(object={"a": deep}))
    assert decode_review(body(object={"spec": {"containers": [{"name": "x"}] * 250}}))
    assert decode_review(body(name="x" * 2**20))
    limits = ReviewLimits(depth_max=3)
    with pytest.raises(InputError, match="too deep: depth_max=3"):
        decode_review(body(), limits)


def test_html_escapes_of_the_api_server_are_read() -> None:
    r"""Go writes `<` as `\u003c`, and pairs of surrogates are text like any other."""
    source = body(name="x").replace(b'"name": "x"', b'"name": "\\u003c\\ud83d\\ude00"')

    assert decode_review(source).name == "<\N{GRINNING FACE}"


def test_a_name_that_is_generated_is_shown_without_its_end() -> None:
    """It is the only name that the user knows."""
    request = decode_review(body(name=None, object={"metadata": {"generateName": "train-"}}))

    assert request.shown_name == "train-"
    assert decode_review(body(name=None, object={"metadata": []})).shown_name == ""
    assert decode_review(body()).shown_name == "p"


def test_an_allowed_object_is_answered_with_its_patch() -> None:
    """Kubernetes API: a JSONPatch in base64, the request's uid."""
    patch = (
        PatchOperation(op="add", path="/a", value={"b": 1}),
        PatchOperation(op="remove", path="/c"),
    )
    request = decode_review(body())

    shown = encode_review(request, AdmissionAnswer(patch=patch, warnings=("w",), audit={"k": "v"}))

    response: Object = shown["response"]  # type: ignore[assignment]  # it is an object
    text = base64.b64decode(response.pop("patch"))
    assert json.loads(text) == [
        {"op": "add", "path": "/a", "value": {"b": 1}},
        {"op": "remove", "path": "/c"},
    ]
    assert shown == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {
            "uid": request.uid,
            "allowed": True,
            "patchType": "JSONPatch",
            "warnings": ["w"],
            "auditAnnotations": {"k": "v"},
        },
    }


def test_an_allowed_object_without_changes_is_answered_shortly() -> None:
    """An empty patch is not sent at all."""
    request = decode_review(body())

    assert encode_review(request, AdmissionAnswer())["response"] == {
        "uid": request.uid,
        "allowed": True,
    }


def test_a_refusal_is_a_status_that_kubectl_can_show() -> None:
    """Code, reason and causes, so that `kubectl apply` prints a line for each violation."""
    request = decode_review(body())
    answer = refuse(kind="Pod", name="p", causes=[CAUSE])

    assert encode_review(request, answer)["response"] == {
        "uid": request.uid,
        "allowed": False,
        "status": {
            "status": "Failure",
            "message": 'Pod "p" is invalid: spec.a: Invalid value: 1: no',
            "reason": "Invalid",
            "code": 422,
            "details": {
                "name": "p",
                "group": "",
                "kind": "Pod",
                "causes": [
                    {
                        "reason": "FieldValueInvalid",
                        "message": "Invalid value: 1: no",
                        "field": "spec.a",
                    }
                ],
            },
        },
    }


def test_something_forbidden_has_another_code() -> None:
    """A Binding by someone else is not invalid, it is not allowed."""
    answer = refuse(kind="Binding", name="p", causes=[CAUSE], reason=FORBIDDEN)

    response: Object = encode_review(decode_review(body()), answer)["response"]  # type: ignore[assignment]  # it is an object

    assert (response["status"]["code"], response["status"]["reason"]) == (403, "Forbidden")
    assert answer.message.startswith('Binding "p" is forbidden: ')


def test_several_violations_stand_in_brackets() -> None:
    """As the API server writes them; the same one is said once."""
    other = FieldError(field="spec.b", reason="FieldValueForbidden", message="Forbidden: no")
    answer = refuse(
        kind="Pod",
        name="p",
        causes=[CAUSE, other, CAUSE],
        refusals=[Refusal(rule="A", mode="enforce", error=CAUSE)],
    )

    assert answer.message == (
        'Pod "p" is invalid: [spec.a: Invalid value: 1: no, spec.b: Forbidden: no]'
    )


def test_a_long_warning_is_cut_before_the_api_server_does() -> None:
    """Fewer than 256 characters, one line."""
    request = decode_review(body())

    response: Object = encode_review(request, AdmissionAnswer(warnings=("a\nb", "x" * 300)))[
        "response"
    ]  # type: ignore[assignment]  # it is an object

    assert response["warnings"] == ["a b", "x" * 252 + "..."]
