"""
Hostile AdmissionReviews through reading, mutating and validating; run as a module for a campaign.

Each one is a real review with a few things changed: values replaced, keys removed, renamed or
doubled, branches moved or nested, at last bytes of its text. Seeded, so that a failure comes again.
"""

from __future__ import annotations

import copy
import json
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import jsonpatch

from ledger.domain.errors import InputError
from ledger.domain.request.normalise import decode_pod
from ledger.domain.vocabulary import Vocabulary
from tenure.progress import counting_bar
from tests.support.objects import Json, Object, container, device, gpu_device, node, nrt, pod
from webhook.decide.answers import AdmissionAnswer
from webhook.decide.facts import NamespaceFacts
from webhook.decide.mutating.pod import mutate_pod
from webhook.decide.review import AdmissionRequest, decode_review, encode_review, readable_pod
from webhook.decide.settings import DEFAULT_ADMISSION, AdmissionSettings
from webhook.decide.validating.validate import validate

Place = tuple[Json, Json]
"""A dict or list, and the key or index of one value in it."""

MANAGED: Final = NamespaceFacts(labels={"tenure.sh/managed": "true"}, managed=True)
SETTINGS: Final = (DEFAULT_ADMISSION, AdmissionSettings(vocabulary=Vocabulary(slot_mode="plugin")))

SCALARS: Final[tuple[Json, ...]] = (
    None, True, False, 0, 1, -1, 2**63, -(2**63) - 1, 10**30, 0.5, 1e300, "", " ", "0", "1", "-1",
    "50", "100", "150", "200", "1.5", "1e3", "1e400", "9" * 60, "Ki", "2Gi", "6Gi", "-5Mi", "nan",
    "void", "all", "none", "true", "false", "LSR", "LSE", "BE", "koord-prod", "Always", "Exists",
    "{", "{}", "[]", "null", "2,1", "1,-1", "a/b~c", "\u0000", "\ud83d\ude00", "x" * 5000,
    "tenure", "default-scheduler", "../../etc", "'; --", "%s%n", [], {}, [[]], {"a": []},
)  # fmt: skip
NAMES: Final = (
    "nvidia.com/gpu", "amd.com/gpu", "koordinator.sh/gpu", "koordinator.sh/gpu.shared",
    "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio",
    "kubernetes.io/gpu", "kubernetes.io/gpu-mem", "kubernetes.io/rdma", "koordinator.sh/fpga",
    "huawei.com/npu-core", "vke.volcengine.com/mgpu-core", "vke.volcengine.com/mgpu-memory",
    "aliyun.com/gpu-mem", "aliyun.com/gpu-count", "tenure.sh/slot", "cpu", "memory", "name",
    "kubernetes.io/batch-cpu", "koordinator.sh/qosClass", "koordinator.sh/priority-class",
    "gputopology.scheduling.koordinator.sh/name", "gputopology.scheduling.koordinator.sh/replica",
    "scheduling.koordinator.sh/resource-spec", "scheduling.koordinator.sh/device-allocate-hint",
    "scheduling.koordinator.sh/device-allocated", "gang.scheduling.koordinator.sh/min-available",
    "vke.volcengine.com/container-multiple-gpu", "tenure.sh/original-request",
    "tenure.sh/admitted", "tenure.sh/visible.0", "restartPolicy", "env", "resources", "limits",
    "requests", "nodeName", "schedulerName", "overhead", "tolerations", "affinity", "priority",
)  # fmt: skip


def seeds() -> list[Object]:
    """Return the reviews that everything starts from."""
    gpu = {"nvidia.com/gpu": "2"}
    share = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi"}
    mgpu = {"vke.volcengine.com/mgpu-core": "200", "vke.volcengine.com/mgpu-memory": "6k"}
    hints: Object = {"scheduling.koordinator.sh/device-allocate-hint": {"rdma": {"selector": {}}}}
    multiple = {"vke.volcengine.com/container-multiple-gpu": "2"}
    both = {"limits": share, "requests": share}
    group = {
        "gputopology.scheduling.koordinator.sh/name": "g",
        "gputopology.scheduling.koordinator.sh/replica": "2",
    }
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    whole = pod(
        container("a", limits=gpu), container("b", env=env), init=[container("i", limits=gpu)]
    )
    debug = copy.deepcopy(whole)
    debug["spec"] |= {"schedulerName": "tenure", "ephemeralContainers": [{"name": "d"}]}
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "namespace": "ml"},
        "target": {"kind": "Node", "name": "n1"},
    }
    return [
        _review(whole),
        _review(pod(container(**both, env=[{"name": "A", "value": "1"}]), annotations=hints)),
        _review(pod(container(limits={"kubernetes.io/gpu": "50"}), labels=group)),
        _review(pod(container(limits=mgpu), annotations=multiple, tolerations=[{"key": "a"}])),
        _review(pod(container(limits={"aliyun.com/gpu-mem": 1000}), schedulerName="x")),
        _review(pod(container(limits={"cpu": "2"}), labels={"koordinator.sh/qosClass": "LSR"})),
        _review(whole, operation="UPDATE", old=whole),
        _review(debug, operation="UPDATE", old=whole, sub="ephemeralcontainers"),
        _review(debug, operation="UPDATE", old=whole, sub="resize"),
        _review(debug, operation="UPDATE", old=whole, sub="status"),
        _review(binding, kind="Binding", sub="binding"),
        _review(device(gpu_device(0)), kind="Device", group="scheduling.koordinator.sh"),
        _review(
            nrt(cpu_topology={"detail": [{"id": 0, "core": 0, "socket": 0, "node": 0}]}),
            kind="NodeResourceTopology",
            group="topology.node.k8s.io",
        ),
        _review(node(), kind="Node", operation="UPDATE", old=node()),
    ]


def hostile(rng: random.Random, sources: list[Object]) -> bytes:
    """Return one review that is a little, or very, wrong."""
    review = copy.deepcopy(rng.choice(sources))
    for _ in range(rng.choice((0, 1, 1, 2, 3, 6))):
        inside = isinstance(review.get("request"), dict) and rng.random() < 0.85
        places = list(_places(review["request"].get("object") or {} if inside else review))
        if places:
            rng.choice(_CHANGES)(rng, *rng.choice(places))
    text = json.dumps(review)
    if rng.random() < 0.2:
        text = _cut(rng, text)
    return text.encode(errors="surrogatepass")


def judge(body: bytes, settings: AdmissionSettings) -> str:
    """
    Return what became of a body: `unreadable`, `refused` or `allowed`.

    Raises:
        AssertionError: it was allowed though nobody could decode it, or a patch does not do what
            it says. Any other exception but InputError out of reading is a failure by itself.
    """
    try:
        request = decode_review(body)
    except InputError:
        return "unreadable"
    first = mutate_pod(request, settings, MANAGED)
    _check_answer(request, first)
    if not first.allowed:
        return "refused"
    after = _after(request, first)
    second = validate(after, settings, MANAGED)
    _check_answer(after, second)
    if not second.allowed:
        return "refused"
    if _creates_pod(request):
        assert after.obj is not None
        decode_pod(readable_pod(after.obj, request.namespace), settings.vocabulary)
    return "allowed"


def _creates_pod(request: AdmissionRequest) -> bool:
    """Tell whether it is what the API server calls the creation of a Pod."""
    what = (request.group, request.kind, request.operation, request.subresource)
    return what == ("", "Pod", "CREATE", "") and request.resource in {"", "pods"}


def run(count: int, seed: int, progress: Callable[[int], None] | None = None) -> Object:
    """Judge that many bodies and return how many came to what; the first failure is raised."""
    rng, sources, found = random.Random(seed), seeds(), Counter[str]()
    for number in range(count):
        body = hostile(rng, sources)
        try:
            found[judge(body, SETTINGS[number % 2])] += 1
        except Exception as error:
            error.add_note(f"seed={seed}, number={number}, body={body[:20000]!r}")
            raise
        if progress is not None and number % 500 == 0:
            progress(number)
    return {"reviews": count, **dict(sorted(found.items()))}


def _check_answer(request: AdmissionRequest, answer: AdmissionAnswer) -> None:
    assert answer.allowed is not bool(answer.causes)
    assert not (answer.patch and not answer.allowed)
    assert all(len(text) < 256 and "\n" not in text for text in answer.warnings)
    json.dumps(encode_review(request, answer), allow_nan=False).encode()


def _after(request: AdmissionRequest, answer: AdmissionAnswer) -> AdmissionRequest:
    if request.obj is None or not answer.patch:
        return request
    operations = [operation.as_json() for operation in answer.patch]
    body = jsonpatch.apply_patch(copy.deepcopy(request.obj), operations)
    changed = AdmissionRequest(**{**_fields(request), "obj": body})
    assert mutate_pod(changed, DEFAULT_ADMISSION, NamespaceFacts()).patch == ()
    return changed


def _fields(request: AdmissionRequest) -> Object:
    return {name: getattr(request, name) for name in AdmissionRequest.__slots__}


def _review(
    body: Object,
    *,
    kind: str = "Pod",
    group: str = "",
    operation: str = "CREATE",
    old: Object | None = None,
    sub: str = "",
) -> Object:
    request: Object = {
        "uid": "u",
        "kind": {"group": group, "version": "v1", "kind": kind},
        "resource": {"group": group, "version": "v1", "resource": f"{kind.lower()}s"},
        "namespace": "ml",
        "name": "p",
        "operation": operation,
        "userInfo": {"username": "alice", "groups": ["dev"]},
        "object": body,
        "oldObject": old,
        "dryRun": False,
    }
    if sub:
        request["subResource"] = sub
        request["resource"]["resource"] = "pods"
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def _places(value: Json) -> Iterator[Place]:
    if not isinstance(value, dict | list):
        return
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield value, key
        yield from _places(item)


def _replace(rng: random.Random, parent: Json, key: Json) -> None:
    parent[key] = copy.deepcopy(rng.choice(SCALARS))


def _remove(_: random.Random, parent: Json, key: Json) -> None:
    del parent[key]


def _rename(rng: random.Random, parent: Json, key: Json) -> None:
    if isinstance(parent, dict):
        parent[rng.choice(NAMES)] = parent.pop(key)
    else:
        parent.append(copy.deepcopy(parent[key]))


def _add(rng: random.Random, parent: Json, _: Json) -> None:
    if isinstance(parent, dict):
        parent[rng.choice(NAMES)] = copy.deepcopy(rng.choice(SCALARS))
    else:
        parent.insert(0, copy.deepcopy(rng.choice(SCALARS)))


def _nest(rng: random.Random, parent: Json, key: Json) -> None:
    for _ in range(rng.choice((1, 2, 70))):
        parent[key] = [parent[key]] if rng.random() < 0.5 else {rng.choice(NAMES): parent[key]}


_CHANGES: Final = (_replace, _replace, _replace, _remove, _rename, _add, _add, _nest)


def _cut(rng: random.Random, text: str) -> str:
    place = rng.randrange(len(text))
    match rng.randrange(5):
        case 0:
            return text[:place]
        case 1:
            return text[:place] + rng.choice('{}[],:"\\\u0000\ud800NaN9') + text[place:]
        case 2:
            return text.replace('"name"', '"name": 1, "name"', 1)
        case 3:
            return text.replace('"1"', rng.choice(("NaN", "1e999", "-Infinity", '"\\ud800"')), 1)
        case _:
            return text[:place] + text[place + rng.randrange(1, 9) :]


def main() -> None:
    """Run a campaign: number of reviews, seed. Prints its figures as JSON."""
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    try:
        with counting_bar("reviews", count) as progress:
            figures = run(count, seed, progress)
    except Exception:  # noqa: BLE001 - the process edge
        traceback.print_exc()
        sys.exit(1)
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
