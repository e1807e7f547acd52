"""Kubelet's record of claims, as its own tests have it, and everything that it may not be."""

from __future__ import annotations

import json
import zlib
from typing import Any, Final

import pytest

from agent.checkpoint import BYTES_MAX, CheckpointError, CheckpointFault
from agent.claim_checkpoint import FILE_NAME, KIND, VERSION, PreparedClaim, read_claim_checkpoint

# Both as kubernetes v1.36.3 has them, pkg/kubelet/cm/dra/state/checkpointer_test.go.
SHARE: Final = (
    r'{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",'
    r"\"ClaimInfoStateList\":[{\"ClaimUID\":\"067798be-454e-4be4-9047-1aa06aea63f7\","
    r"\"ClaimName\":\"example\",\"Namespace\":\"default\","
    r"\"PodUIDs\":{\"139cdb46-f989-4f17-9561-ca10cfb509a6\":{}},"
    r"\"DriverState\":{\"test-driver.cdi.k8s.io\":{\"Devices\":[{\"PoolName\":\"worker-1\","
    r"\"DeviceName\":\"dev-1\",\"ShareID\":\"aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa\","
    r"\"RequestNames\":[\"test request\"],\"CDIDeviceIDs\":[\"example.com/example=cdi-example\"]}"
    r']}}}]}","Checksum":736302156}'
)


def written(claims: object, *, kind: str = KIND, version: str = VERSION, **more: Any) -> bytes:  # noqa: ANN401
    """Return a file with these claims, as kubelet writes it."""
    data = json.dumps({"kind": kind, "apiVersion": version, "ClaimInfoStateList": claims})
    return json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode()), **more}).encode()


def test_a_claim_is_read_with_its_pods() -> None:
    """The sample of upstream, checksum and all."""
    assert read_claim_checkpoint(SHARE.encode()) == (
        PreparedClaim(
            claim_uid="067798be-454e-4be4-9047-1aa06aea63f7",
            namespace="default",
            name="example",
            pods=frozenset({"139cdb46-f989-4f17-9561-ca10cfb509a6"}),
        ),
    )


@pytest.mark.parametrize("none", [None, []])
def test_a_kubelet_without_claims_has_an_empty_list(none: object) -> None:
    """It writes `null` at its first start."""
    assert read_claim_checkpoint(written(none)) == ()


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", CheckpointFault.NOT_JSON),
        (SHARE.encode()[:-30], CheckpointFault.NOT_JSON),
        (SHARE.replace("dev-1", "dev-2").encode(), CheckpointFault.WRONG_CHECKSUM),
        (SHARE.replace("736302156", "736302157").encode(), CheckpointFault.WRONG_CHECKSUM),
        (b'{"Checksum": 1}', CheckpointFault.OTHER_SHAPE),
        (written([{"ClaimUID": 1}]), CheckpointFault.OTHER_SHAPE),
        (
            written([{"ClaimUID": "", "ClaimName": "a", "Namespace": "b"}]),
            CheckpointFault.OTHER_SHAPE,
        ),
        (written([], version="checkpoint.dra.kubelet.k8s.io/v2"), CheckpointFault.OTHER_VERSION),
        (written([], kind="Other"), CheckpointFault.OTHER_VERSION),
        (b" " * (BYTES_MAX + 1), CheckpointFault.TOO_LARGE),
    ],
)
def test_what_is_not_kubelets_is_refused_by_name(content: bytes, fault: CheckpointFault) -> None:
    """Torn, edited, of a version that nobody knows: it frees nothing."""
    with pytest.raises(CheckpointError, match=FILE_NAME) as error:
        read_claim_checkpoint(content)
    assert error.value.fault is fault
