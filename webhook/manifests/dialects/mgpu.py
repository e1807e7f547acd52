"""mGPU's rules in CEL, for the Pods of every namespace: `request.rules_mgpu` for people."""

from __future__ import annotations

from collections.abc import Mapping

from ledger.domain.dialects.mgpu.annotations import CONTAINER_NAME_LENGTH_MAX, MgpuPolicy
from ledger.domain.dialects.mgpu.rules import NORMAL_MEMORY_MIN_MIB
from ledger.domain.dialects.mgpu.words import (
    ANNOTATION_MGPU_COMPUTE_POLICY,
    ANNOTATION_MGPU_CONTAINER_MULTIPLE,
    MGPU_CORE,
    MGPU_MEMORY,
    MGPU_NAMES,
)
from ledger.domain.vocabulary import Vocabulary
from webhook.decide.settings import AdmissionSettings
from webhook.manifests.cel import any_container, asks, text, texts
from webhook.manifests.policy import Policy, rule

_COUNTS = text(ANNOTATION_MGPU_CONTAINER_MULTIPLE)
_POLICY = text(ANNOTATION_MGPU_COMPUTE_POLICY)
_ASKS = asks(MGPU_NAMES)
_LIST = text("^-?[0-9]{1,9}(,-?[0-9]{1,9})*$")


def policies(settings: AdmissionSettings, shown_only: Mapping[str, str]) -> list[Policy]:
    """Return the one policy that keeps mGPU's rules."""
    return [
        Policy(
            name="mgpu",
            rules=[rule(["CREATE", "UPDATE"], ["pods"])],
            conditions={"asks-mgpu": asks_mgpu(), "asked-anew": asked_anew(), **shown_only},
            variables=mgpu_variables(),
            validations=mgpu_validations(settings.vocabulary),
        )
    ]


def asks_mgpu() -> str:
    """Return that a Pod names mGPU's resources, whoever places it."""
    return any_container("object", _ASKS)


def asked_anew() -> str:
    """Return that the Pod is new, or says something else by mGPU's annotations."""
    differs = [
        f"{_annotation('object', key)} != {_annotation('oldObject', key)}"
        for key in (_COUNTS, _POLICY)
    ]
    return f"request.operation == 'CREATE' || {' || '.join(differs)}"


def mgpu_variables() -> Mapping[str, str]:
    """Return the Pod's list of card counts, empty where it is none or does not parse."""
    return {
        "text": _annotation("object", _COUNTS),
        "multi": f"has(object.metadata.annotations) && {_COUNTS} in object.metadata.annotations",
        "counts": (
            f"variables.text.matches({_LIST})"
            " ? variables.text.split(',').map(one, int(one)) : [0].filter(one, false)"
        ),
        "names": "object.spec.containers.map(c, c.name)",
    }


def mgpu_validations(vocabulary: Vocabulary) -> Mapping[str, str]:
    """
    Return the rules; `asks_mgpu` holds and `mgpu_variables` are there.

    Rule: GPU-sharing contract A.1, A.3 (every Pod that names a resource, whoever owns it), A.6.
    """
    policies = texts(map(str, MgpuPolicy))
    init = f"!has(object.spec.initContainers) || object.spec.initContainers.all(c, !({_ASKS}))"
    name = f"!({_ASKS}) || size(c.name) <= {CONTAINER_NAME_LENGTH_MAX}"
    policy = _annotation("object", _POLICY)
    return {
        "mGPU is for containers that run: an init container can't hold a share": init,
        f"the name of a container with mGPU has at most {CONTAINER_NAME_LENGTH_MAX} characters": (
            f"object.spec.containers.all(c, {name})"
        ),
        f"{ANNOTATION_MGPU_COMPUTE_POLICY} is one of {', '.join(map(str, MgpuPolicy))}": (
            f"!has(object.metadata.annotations) || !({_POLICY} in object.metadata.annotations)"
            f" || {policy} in {policies}"
        ),
        "mGPU on one card: 1 to 99 core with at least 256 MiB, or whole cards without memory; the"
        " value counts MiB": (
            "variables.multi || object.spec.containers.all(c,"
            f" !({_ASKS}) || ({_normal(vocabulary.mgpu_max_memory_mib)}))"
        ),
        f"{ANNOTATION_MGPU_CONTAINER_MULTIPLE} lists one number of cards for each container": (
            "!variables.multi || (size(variables.counts) == size(variables.names)"
            " && variables.counts.all(one, one >= 0))"
        ),
        "mGPU over several cards comes out even on each, with enough memory, which counts MiB": (
            "!variables.multi || size(variables.counts) != size(variables.names)"
            f" || object.spec.containers.all(c, {_multiple(vocabulary)})"
        ),
    }


def _normal(memory_max_mib: int) -> str:
    """Rules N1 to N4 of one container, and the unit."""
    core, memory = _amount(MGPU_CORE), _amount(MGPU_MEMORY)
    part = f"({core} < 100 && {memory} >= {NORMAL_MEMORY_MIN_MIB} && {memory} <= {memory_max_mib})"
    whole = f"({core} >= 100 && {core} % 100 == 0 && !({_is_set(MGPU_MEMORY)}))"
    return f"{core} > 0 && ({part} || {whole})"


def _multiple(vocabulary: Vocabulary) -> str:
    """Rules M3 to M9 of one container, and the unit."""
    core, memory = _amount(MGPU_CORE), _amount(MGPU_MEMORY)
    count = "variables.counts[variables.names.indexOf(c.name)]"
    signs = f"(!({_is_set(MGPU_CORE)}) || {core} > 0) && {memory} >= 0"
    least, most = vocabulary.mgpu_multi_min_memory_mib, vocabulary.mgpu_max_memory_mib
    parts = " && ".join(
        (
            f"{memory} / {count} >= {least}",
            f"{core} % {count} == 0",
            f"{memory} % {count} == 0",
            f"{core} / {count} <= 100",
            f"{memory} / {count} <= {most}",
        )
    )
    whole = f"{core} == 100 * {count} ? !({_is_set(MGPU_MEMORY)}) : ({parts})"
    held = f"{count} == 0 ? ({core} == 0 && {memory} == 0) : ({core} > 0 && ({whole}))"
    return f"{signs} && ({held})"


def _is_set(name: str) -> str:
    amounts = "c.resources.requests"
    return f"has(c.resources) && has({amounts}) && {text(name)} in {amounts}"


def _amount(name: str) -> str:
    amount = f"quantity(c.resources.requests[{text(name)}]).asInteger()"
    return f"({_is_set(name)} ? {amount} : 0)"


def _annotation(pod: str, key: str) -> str:
    there = f"{pod}.metadata.annotations"
    return f"(has({there}) && {key} in {there} ? {there}[{key}] : '')"
