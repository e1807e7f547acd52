"""Plays what may stand in the files that a node's agent reads, and what Pods may do to it."""

from __future__ import annotations

import json
import os
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from agent.checkpoint import FILE_NAME, CheckpointError, DeviceCheckpoint
from agent.claim_checkpoint import FILE_NAME as CLAIMS_FILE_NAME
from agent.decide.slots_cdi import CardEdits
from agent.discover.combined import CombinedProbe, Part
from agent.discover.declared import DeclaredProbe
from agent.discover.fault_file import read_faults, write_faults
from agent.discover.faults import CardFault, Faults
from agent.discover.host_files import HostFiles
from agent.discover.machine import Kind
from agent.kubelet.watch import read_pods
from agent.plugin.files import CheckpointFile, SpecFolder, claims_in
from agent.plugin.preparing import Slots
from agent.service.keeping import FILE_NAME as COPY_FILE_NAME
from agent.service.keeping import Copy, CopyFile
from agent.service.link import ServiceLink
from agent.witness.confirmer import GONE_FILE, gone_in
from agent.witness.seen import Place, place_of
from ledger.domain.annotations.proof import ProvenDevice
from ledger.domain.errors import TenureError
from ledger.domain.resources import SLOT
from tests.support.agent_world import AgentWorld
from tests.support.hostile.attack import Attack
from tests.support.kubelets import checkpoint_of, entry
from tests.support.proofs import held, holds, word

FILES: Final = "whoever writes the node's files, or a crash"
NAMESPACE: Final = "a Pod of a hostile namespace"
MIB: Final = 1 << 20
START: Final = "0123456789abcdef"
NAME: Final = f"slot-0000.{START}.1"
POD_BYTES: Final = 1_400_000
"""The API server takes no larger object."""


def replaced(path: Path, whole: bytes) -> Iterator[None]:
    """Put in a file's place, one after the other, what is none or not the whole of it."""
    aside = path.with_name("elsewhere")
    aside.write_bytes(whole)
    for content in (whole[: len(whole) // 2], b"", whole + b"\0"):
        path.write_bytes(content)
        if content.endswith(b"\0"):
            os.truncate(path, 64 * MIB)
        yield
        path.unlink()
    path.symlink_to(aside)
    yield
    path.unlink()
    path.mkdir()
    yield
    path.rmdir()
    os.mkfifo(path)
    yield
    writer = os.open(path, os.O_RDWR)
    yield
    os.close(writer)
    path.unlink()


def taken(path: Path, whole: bytes, is_taken: Callable[[], bool]) -> str:
    """Say how many of what is put there are taken for the file."""
    found = [is_taken() for _ in replaced(path, whole)]
    return f"{sum(found)} of {len(found)}"


def is_read(read: Callable[[], object]) -> bool:
    """Tell whether a file is read; what refuses it refuses it by name."""
    try:
        read()
    except (TenureError, OSError):
        return False
    return True


def replace_records() -> str:
    """Replace kubelet's records of devices and claims, while nothing is known of a Pod's end."""
    whole = checkpoint_of([entry("pod-p", "main", "slot-0000", f"{SLOT}={NAME}")])
    with tempfile.TemporaryDirectory() as folder:
        devices, claims = Path(folder, FILE_NAME), Path(folder, CLAIMS_FILE_NAME)
        of_devices = taken(devices, whole, lambda: is_read(CheckpointFile(devices).read))
        of_claims = taken(claims, b'{"Data":"{}"', lambda: is_read(lambda: claims_in(claims)))
    return f"{of_devices} and {of_claims} are read, {called_gone(whole)} Pods are called gone"


def called_gone(whole: bytes) -> int:
    """Look at a node whose record is replaced; count the Pods that are called gone meanwhile."""

    class World(AgentWorld):
        """A node whose record is a file."""

        def checkpoint(self) -> DeviceCheckpoint:
            return CheckpointFile(self.folder / FILE_NAME).read()

    gone: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        world.scene.hold("p")

        async def act(link: ServiceLink) -> None:
            confirmer = world.confirmer(link)
            for _ in replaced(world.folder / FILE_NAME, whole):
                await confirmer.round()
                gone.append(len(world.scene.word().gone))
            await confirmer.round()
            assert world.scene.word().gone == {"pod-p"}, "it is called so once the record is whole"

        world.run(act)
    return sum(gone)


def replace_own_state() -> str:
    """Replace the files by which an agent remembers faults, Pods called gone, and holdings."""
    kept = Faults(kept=(CardFault(uuid="GPU-a", reason="Xid79", message="fell off"),))
    copy = Copy(known=word(40, held("p", 30, holds("0", "y"))), at=7, boot_id="now")
    with tempfile.TemporaryDirectory() as folder:
        faults, gone, copied = (
            Path(folder, name) for name in ("faults.json", GONE_FILE, COPY_FILE_NAME)
        )
        write_faults(faults, kept)
        CopyFile(Path(folder)).write(copy)
        found = [
            taken(faults, _out(faults), lambda: is_read(lambda: _unless_forgotten(faults))),
            taken(gone, b'["pod-p"]', lambda: not gone_in(Path(folder))[1]),
            taken(copied, _out(copied), lambda: is_read(CopyFile(Path(folder)).read)),
        ]
    return f"{', '.join(found)} are taken for its own"


def declare_by_pipe() -> str:
    """Have the agent look at a machine whose files are pipes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pipe")
        os.mkfifo(path)
        declared = DeclaredProbe(path=path, host=HostFiles(root=Path(folder)))
        parts = (Part(probe=declared, kinds=(Kind.OTHER,)),)
        found = CombinedProbe(parts=parts, measured=path).look()
    return f"{len(found.problems)} of 2 named: {', '.join(one.reason for one in found.problems)}"


def _out(path: Path) -> bytes:
    content = path.read_bytes()
    path.unlink()
    return content


def _unless_forgotten(path: Path) -> None:
    _, problems = read_faults(path)
    if problems:
        path.with_name(f"{path.name}.unread").rename(path)
        raise TenureError(problems[0].message)


def fill_record() -> str:
    """Fill a record of device ids with entries as small as JSON allows, up to its most bytes."""
    content = b'{"Data":{"PodDeviceEntries":[%s]},"Checksum":1}'
    content %= b",".join([b'{"PodUID":"a"}'] * 250_000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, FILE_NAME)
        path.write_bytes(content)
        try:
            CheckpointFile(path).read()
        except CheckpointError as error:
            return f"{error.fault}, before its checksum is made"
    return "read"


class _AllHeld:
    """Every container holds a card."""

    def devices_of(self, _pod: str, _container: str) -> list[ProvenDevice]:
        return [ProvenDevice(device_type="gpu", device_id="x", minor=0)]

    def shown_to(self, _pod: str) -> list[str]:
        return []

    def is_held(self, _pod: str) -> bool:
        return True


def forge_names() -> str:
    """Write records with right checksums, with names that are paths, and one of two Pods."""
    paths = ("../../../etc/cron.d/x", f"{NAME}/../../x", "/etc/passwd", f"{NAME}\0", "")
    of_paths = [entry("pod-p", "main", "slot-0000", *(f"{SLOT}={one}" for one in paths))]
    twice = [entry(f"pod-{one}", "main", "slot-0000", f"{SLOT}={NAME}") for one in "pq"]
    with tempfile.TemporaryDirectory() as folder:
        record, cdi = Path(folder, FILE_NAME), Path(folder, "cdi")
        cdi.mkdir()
        slots = Slots(
            count=1,
            start=START,
            specifications=SpecFolder(cdi),
            checkpoint=CheckpointFile(record).read,
            holdings=_AllHeld(),
            cards=lambda: {"x": CardEdits(edits={"env": ["A=b"]})},
        )
        started = []
        for entries in (of_paths, twice):
            record.write_bytes(checkpoint_of(entries))
            started.append(is_read(lambda: slots.prepare(["slot-0000"])))
        files = set(Path(folder).rglob("*")) - {record, cdi}
        record.write_bytes(checkpoint_of(twice[:1]))
        assert slots.prepare(["slot-0000"]), "a record without a lie starts its container"
    return f"{sum(started)} of {len(started)} containers start, {len(files)} files are written"


def grow_variables() -> str:
    """Fill kubelet's answer with Pods as large as the API server takes, all of variables."""
    named = [{"name": f"E{number}", "value": "v"} for number in range(POD_BYTES // 34)]
    return _grown(20, {}, named)


def grow_annotations() -> str:
    """Fill it with as many annotations as a Pod may have."""
    return _grown(10, {f"x/{number:05}": "v" for number in range(32_768)}, [])


def _grown(count: int, annotations: Mapping[str, str], variables: list[dict[str, str]]) -> str:
    metadata = {"uid": "pod-x", "name": "x", "namespace": "x", "annotations": annotations}
    spec = {"containers": [{"name": "main", "image": "i", "env": variables}]}
    body = json.dumps({"items": [{"metadata": metadata, "spec": spec}] * count}).encode()
    tracemalloc.start()
    try:
        read = read_pods(body)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    bound = 8 if most < 8 * MIB else most // MIB
    return f"{len(read)} Pods of {len(body) // MIB} MiB are read in less than {bound} MiB more"


def nest_cgroups() -> str:
    """Name a cgroup below the own one after a container of another Pod."""
    own = Place(pod_uid="0" * 8 + "-0000-0000-0000-" + "0" * 12, container_id="a" * 64)
    theirs = "1" * 8 + "-1111-1111-1111-" + "1" * 12
    path = f"/kubepods/pod{own.pod_uid}/{own.container_id}/kubepods/pod{theirs}/{'b' * 64}"
    found = place_of("\n".join(f"{number}:memory:{path}" for number in (2, 1)))
    return "its own" if found == own else f"that of {found}"


ATTACKS: Final = (
    Attack(
        who=FILES,
        what="puts half, nothing, 64 MiB, a link, a folder and pipes where kubelet's records are",
        play=replace_records,
    ),
    Attack(
        who=FILES,
        what="puts the same where the agent's faults, Pods called gone and holdings are",
        play=replace_own_state,
    ),
    Attack(
        who=FILES,
        what="puts a pipe where devices are declared, and where bandwidth is",
        play=declare_by_pipe,
    ),
    Attack(who=FILES, what="fills kubelet's record with 250,000 empty entries", play=fill_record),
    Attack(
        who=FILES,
        what="forges kubelet's record: names that are paths, and one name of two Pods",
        play=forge_names,
    ),
    Attack(
        who=NAMESPACE,
        what="has 20 Pods of 1.3 MiB of variables on a node",
        play=grow_variables,
    ),
    Attack(
        who=NAMESPACE,
        what="has 10 Pods of 256 KiB of annotations on a node",
        play=grow_annotations,
    ),
    Attack(
        who=NAMESPACE,
        what="names a cgroup below its own after a container that holds a card: a process there is",
        play=nest_cgroups,
    ),
)
