"""`tenure serve cpus` as a process, over a tree of files: what it writes, says and leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.cpus.binder import MARK
from agent.cpus.nri_messages import Bound, adjusted
from agent.decide.node_holdings import CpuClaim
from agent.service.keeping import Copy, CopyFile
from ledger.domain.cpuset import parse_cpuset
from tests.support.cgroup_trees import FakeTree, Layout, id_of, uid_of
from tests.support.cpu_trees import write_cpus
from tests.support.cpus_world import Cluster, CpusWorld, cpus_world, pod
from tests.support.fake_runtime import FakeRuntime, call
from tests.support.process import tenure
from tests.support.proofs import word
from tests.support.sys_trees import SysTree
from tests.support.topologies import MACHINE_Y

pytestmark = pytest.mark.integration

OWN = Bound(cpus=parse_cpuset("2-3"), quota=False)
LAYOUT = Layout(version=1, driver="systemd", runtime="containerd")


class Scene:
    """An LSR Pod and one of shared CPUs on a node with 16 CPUs."""

    def __init__(self, fake: FakeTree, world: CpusWorld) -> None:
        self.fake, self.world = fake, world
        self.own = f"{fake.pod(1, containers=[1])}/{LAYOUT.container(id_of(1))}"
        for path in (self.own, self.own.rpartition("/")[0]):
            fake.say(path, "200000", "cpu.cfs_quota_us")
        self.shared = f"{fake.pod(2, 'burstable', [2])}/{LAYOUT.container(id_of(2))}"
        self.pods = (pod(1, qos="LSR", cpus="2-3", milli=2000), pod(2, milli=500, limit=False))
        world.runs(*self.pods)

    def cpus(self) -> tuple[str, str]:
        """Return the CPUs of both containers."""
        return self.fake.says(self.own), self.fake.says(self.shared)

    def is_bound(self) -> bool:
        """Tell whether both have what is theirs."""
        return self.cpus() == ("2-3", "0-1,4-15")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """The node, whose process is not started yet."""
    fake = FakeTree(tmp_path / "cgroup", LAYOUT, "0-15")
    write_cpus(SysTree(root=tmp_path), MACHINE_Y, memory_kib=4096, pages={})
    with cpus_world(tmp_path, fake.cpuset, fake.cpu) as world:
        world.options["host"] = tmp_path
        yield Scene(fake, world)


def test_without_the_label_it_says_its_plan_and_writes_nothing(scene: Scene) -> None:
    """Neither a cgroup nor the Node."""
    world = scene.world
    world.start()
    world.until(lambda: "planned alone" in world.ready(), "it plans nothing")
    assert f"{scene.own}/cpuset.cpus = 2-3" in world.ready()
    assert scene.cpus() == ("0-15", "0-15")
    assert (world.label(), world.condition()) == (None, {})
    assert not (world.folder / "state" / MARK).exists()


def test_with_the_label_it_binds_and_says_so_and_gives_back_when_it_is_gone(scene: Scene) -> None:
    """What it binds outlives it; a Pod that comes and one that goes change the shared CPUs."""
    world = scene.world
    world.start()
    world.until(lambda: "planned alone" in world.ready(), "it plans nothing")
    world.allow(bind=True)
    world.until(scene.is_bound, "it does not bind")
    world.until(lambda: world.label() == "true", "the Node does not say so")
    world.until(lambda: world.condition().get("reason") == "Bound", "no condition")

    world.kill()
    assert scene.is_bound()
    world.start()
    third = f"{scene.fake.pod(3, containers=[3])}/{LAYOUT.container(id_of(3))}"
    world.runs(*scene.pods, pod(3, qos="LSE", cpus="4-7", milli=4000))
    world.until(lambda: scene.fake.says(third) == "4-7", "the third is not bound")
    world.until(lambda: scene.cpus() == ("2-3", "0-1,8-15"), "the pool does not shrink")

    world.allow(bind=False)
    world.until(lambda: scene.cpus() == ("0-15", "0-15"), "nothing is given back")
    world.until(lambda: world.label() is None, "the Node still says so")
    world.until(lambda: not world.condition(), "the condition stays")
    world.until(lambda: not (world.folder / "state" / MARK).exists(), "the mark stays")


def test_a_container_that_starts_again_is_bound_again(scene: Scene) -> None:
    """It has another cgroup, with all CPUs, of which kubelet tells later."""
    world = scene.world
    world.allow(bind=True)
    world.start()
    world.until(scene.is_bound, "it does not bind")
    again = f"{scene.own.rpartition('/')[0]}/{LAYOUT.container(id_of(11))}"
    scene.fake.remove(scene.own)
    scene.fake.make(again)
    world.until(lambda: scene.fake.says(again) == "2-3", "the new one is not bound")


def test_one_process_of_a_node_writes_and_another_stands_by(scene: Scene) -> None:
    """As at an upgrade; once the first is gone, the second goes on."""
    world = scene.world
    world.allow(bind=True)
    world.start()
    world.until(scene.is_bound, "it does not bind")
    first, world.process = world.process, None
    assert first is not None
    port, world.probes = world.probes, world.probes
    other = f"127.0.0.1:{port + 1}" if port < 65_000 else "127.0.0.1:0"
    world.start(probes=other)
    try:
        world.probes = int(other.rpartition(":")[2])
        world.until(lambda: "we stand by" in world.ready(), "it does not stand by")
        assert world.ready().startswith("ok\n")
        first.kill()
        first.wait(20)
        world.until(lambda: "cpus: bound" in world.ready(), "it does not go on")
    finally:
        world.kill()


def test_what_the_kernel_has_is_confirmed_and_who_is_gone(scene: Scene) -> None:
    """Container by container, by its place; a Pod without a cgroup that kubelet forgot is gone."""
    world = scene.world
    world.allow(bind=True)
    world.start()
    world.until(scene.is_bound, "it does not bind")

    def confirmed() -> list[tuple[str, str]]:
        return [
            (one["pod_uid"], container["cpus"])
            for said in [*Cluster.told]
            for one in said["assigned"]
            for container in one["containers"]
            if container["index"] == "0"
        ]

    world.until(lambda: (uid_of(1), "2-3") in confirmed(), "it is not confirmed")
    Cluster.listed = [scene.pods[1]]
    scene.fake.remove(scene.own)
    scene.fake.remove(scene.own.rpartition("/")[0])
    world.until(lambda: any(uid_of(1) in said["gone"] for said in Cluster.told), "it is not gone")
    gone = world.folder / "state" / "gone.json"
    assert json.loads(gone.read_text()) == [uid_of(1)]


def test_who_was_called_gone_gets_no_cpus_before_that_is_taken_back(scene: Scene) -> None:
    """By whichever process; nobody else gets them, either."""
    world = scene.world
    (world.folder / "state" / "gone.json").write_text(json.dumps([uid_of(1)]))
    world.allow(bind=True)
    known, Cluster.known = Cluster.known, None  # nobody hears that it is here
    assert known is not None
    CopyFile(world.folder / "state").write(Copy(known=known, at=0, boot_id=""))
    world.start()
    world.until(lambda: scene.cpus() == ("0-1,4-15", "0-1,4-15"), "it is bound otherwise")
    Cluster.known = known
    world.until(scene.is_bound, "it is not bound once that is taken back")
    assert any(uid_of(1) in said["here"] for said in Cluster.told)
    assert json.loads((world.folder / "state" / "gone.json").read_text()) == []


def test_restore_cpus_gives_all_back_where_nobody_binds(scene: Scene) -> None:
    """It is refused while the process runs, and says first what it would write."""
    world = scene.world
    world.allow(bind=True)
    world.start()
    world.until(scene.is_bound, "it does not bind")
    world.until(lambda: bool(world.label() and world.condition()), "the Node does not say so")
    words = ["agent", "restore-cpus", *world.words()]
    refused = tenure(*words, cwd=world.folder)
    assert refused.returncode == 2
    assert "a process of this node binds its CPUs" in refused.stderr
    world.kill()

    told = tenure(*words, "--dry-run", cwd=world.folder)
    assert told.returncode == 0, told.stderr
    assert f"would be written: {scene.own}/cpuset.cpus = 0-15" in told.stdout
    assert (scene.is_bound(), world.label()) == (True, "true")

    done = tenure(*words, cwd=world.folder)
    assert done.returncode == 0, done.stderr
    assert scene.cpus() == ("0-15", "0-15")
    assert scene.fake.says(scene.own, "cpu.cfs_quota_us") == "200000"
    assert (world.label(), world.condition()) == (None, {})  # nobody is sent here any more


def test_restore_cpus_gives_back_where_the_node_can_t_be_told(scene: Scene) -> None:
    """It says so, and what is to be done by hand."""
    world = scene.world
    world.allow(bind=True)
    world.start()
    world.until(scene.is_bound, "it does not bind")
    world.kill()
    words = ["agent", "restore-cpus", *world.words(kubeconfig=world.folder / "none")]
    told = tenure(*words, cwd=world.folder)
    assert (told.returncode, scene.cpus()) == (1, ("0-15", "0-15"))
    assert "not written: of the Node label tenure.sh/cpu-managed and condition" in told.stderr


def test_restore_cpus_leaves_alone_what_a_claims_driver_bound(scene: Scene) -> None:
    """By the copy of the service's word; without one nobody says whose CPUs they are."""
    world, user = scene.world, pod(2, milli=500, limit=False)
    user["spec"]["resourceClaims"] = [{"name": "x", "resourceClaimName": "mine"}]
    world.runs(scene.pods[0], user)
    for path, cpus in ((scene.own, "2-3"), (scene.shared, "4-5")):
        scene.fake.say(path, cpus)
    words = ["agent", "restore-cpus", *world.words()]
    refused = tenure(*words, cwd=world.folder)
    assert "which have CPUs" in refused.stderr
    assert scene.cpus() == ("2-3", "4-5")

    own = parse_cpuset("4-5")
    claim = CpuClaim(claim_uid="c", position=7, namespace="ml", name="mine", cpus=own)
    known = replace(word(100), cpu_claims=(claim,))
    CopyFile(world.folder / "state").write(Copy(known=known, at=0, boot_id=""))
    done = tenure(*words, cwd=world.folder)
    assert done.returncode == 0, done.stderr
    assert scene.cpus() == ("0-15", "4-5")


def test_the_runtime_binds_what_is_planned_while_the_label_is_there(scene: Scene) -> None:
    """A container as it is made; without the label there is no plugin, and none is bound."""
    world = scene.world
    path = world.folder / "nri.sock"

    async def test() -> None:
        runtime = FakeRuntime(path)
        async with runtime.running():
            world.start(nri=path)
            await asyncio.to_thread(
                world.until, lambda: "planned alone" in world.ready(), "it plans nothing"
            )
            assert runtime.connected.empty()
            world.allow(bind=True)
            plugin = await runtime.plugin()
            payload = call(uid_of(1), "main")
            assert await plugin.call("CreateContainer", payload) == adjusted(OWN)

            world.allow(bind=False)
            while await plugin.call("UpdateContainer", payload):  # noqa: ASYNC110 - by a process
                await asyncio.sleep(0.05)

    asyncio.run(test())


def test_the_runtime_binds_a_pod_that_kubelet_does_not_tell_of(scene: Scene) -> None:
    """As one that is just made, or any while kubelet starts: its cgroup is there, and its CPUs."""
    world = scene.world
    path = world.folder / "nri.sock"
    Cluster.listed = []

    async def test() -> None:
        async with (runtime := FakeRuntime(path)).running():
            world.allow(bind=True)
            world.start(nri=path)
            plugin = await runtime.plugin()
            for method in ("CreateContainer", "UpdateContainer"):
                assert await plugin.call(method, call(uid_of(1), "main")), method

    asyncio.run(test())


def test_a_runtime_without_nri_is_noted_on_the_node(scene: Scene) -> None:
    """Containers are bound soon after they are made, as without the option."""
    world = scene.world
    world.start(nri=world.folder / "none.sock")
    world.allow(bind=True)
    world.until(scene.is_bound, "it does not bind")
    world.until(lambda: "NRI: NRIAway: " in world.condition().get("message", ""), "not noted")
    assert world.condition()["status"] == "True"


def test_beside_another_plugin_the_node_says_so(scene: Scene) -> None:
    """It is not bound as the ledger says."""
    world = scene.world
    path = world.folder / "nri.sock"

    async def test() -> None:
        async with (runtime := FakeRuntime(path)).running():
            world.allow(bind=True)
            world.start(nri=path)
            plugin = await runtime.plugin()
            assert await plugin.call("CreateContainer", call(uid_of(1), "main", cpus="0")) == b""
            await asyncio.to_thread(
                world.until,
                lambda: "NRI: AnotherPlugin: " in world.condition().get("message", ""),
                "the Node does not say so",
            )
            assert world.condition()["reason"] == "CPUsNotBound"

    asyncio.run(test())


def test_best_effort_pods_get_fewer_cpus_as_others_use_more(scene: Scene, tmp_path: Path) -> None:
    """Off unless asked for. LSR Pods' CPUs are theirs once nothing is left; never fewer than 2."""
    world, fake = scene.world, scene.fake
    best_effort = f"{fake.pod(4, 'besteffort', [4])}/{LAYOUT.container(id_of(4))}"
    world.runs(*scene.pods, pod(4, qos="BE", milli=0))
    top = fake.cpu or fake.cpuset
    (tmp_path / "proc").mkdir()

    def uses(seconds: int) -> None:
        (tmp_path / "proc" / "stat").write_text(f"cpu {seconds * 100} 0 0 0 0 0 0 0 0 0\n")
        (top / "cpuacct.usage").write_text(f"{seconds * 10**9}\n")
        (top / "kubepods-besteffort.slice" / "cpuacct.usage").write_text("0\n")

    uses(0)
    world.allow(bind=True)
    world.start(**{"best-effort-threshold": 50})
    world.until(lambda: fake.says(best_effort) == "0-15", "it is not bound")
    world.until(lambda: bool(world.condition()), "no round")
    uses(10_000)
    world.until(lambda: fake.says(best_effort) == "0,8", "it is not suppressed")
