"""What our plugin answers the runtime, call by call."""

from __future__ import annotations

from typing import Any

import pytest

from agent.cpus.nri import ANSWER_SECONDS, LOST_SECONDS, Answering, Snapshot, snapshot_of
from agent.cpus.nri_messages import Bound, Happening, message
from agent.decide.pools import Pools
from agent.decide.wanted_cpus import PodWanted, Wanted
from ledger.domain.cpuset import EMPTY, parse_cpuset
from ledger.domain.errors import InputError
from tests.support.fake_runtime import call, changed

OWN = Bound(cpus=parse_cpuset("2-3,6"), mems=parse_cpuset("0"), quota=False)
POOL = Bound(cpus=parse_cpuset("0-1"))
SNAPSHOT = Snapshot(bound={("lsr", "main"): OWN, ("ls", "main"): POOL, ("be", "main"): Bound()})
KUBELETS = Snapshot(bound=SNAPSHOT.bound, kubelet_binds=True)

NO_POOLS = Pools(shared=(), best_effort=(), best_effort_first=EMPTY, exclusive=EMPTY)


class Told(Answering):
    """Calls by the names of their fields."""

    def __init__(self, *moments: float) -> None:
        """Read these moments, one each time that it looks, and then stand still."""
        left, self.now = list(moments), 0.0
        super().__init__(lambda: left.pop(0) if left else self.now)

    def create(self, uid: str, identity: str, snapshot: Snapshot = SNAPSHOT, cpus: str = "") -> Any:  # noqa: ANN401 - a message
        """Return the CPUs of the answer to CreateContainer, None = it asks for nothing."""
        payload = call(uid, "main", identity=identity, cpus=cpus)
        answer, _, _ = self.answer(snapshot, "CreateContainer", payload)
        if not answer:
            return None
        return message("CreateContainerResponse").FromString(answer).adjust.linux.resources.cpu

    def happen(
        self,
        happening: Happening,
        uid: str,
        identity: str = "",
        snapshot: Snapshot = SNAPSHOT,
        cpus: str = "",
    ) -> None:
        """Let something have happened to a container, or to a Pod."""
        payload = call(uid, "main" if identity else "", identity=identity, cpus=cpus)
        method = happening.name.title().replace("_", "")
        answer, about, bound = self.answer(snapshot, method, payload)
        assert (answer, bound) == (b"", None)
        assert about is not None
        assert about.happening is happening

    def made(self, uid: str, identity: str, snapshot: Snapshot = SNAPSHOT, cpus: str = "") -> None:
        """Let a container be made."""
        self.happen(Happening.POST_CREATE_CONTAINER, uid, identity, snapshot, cpus)

    def started(self, uid: str, identity: str) -> None:
        """Let a container run."""
        self.happen(Happening.POST_START_CONTAINER, uid, identity)


def test_a_container_is_made_with_its_cpus_memory_nodes_and_no_quota() -> None:
    """Those of the snapshot, before its process runs."""
    cpu = Told().create("lsr", "one")
    assert (cpu.cpus, cpu.mems, cpu.quota.value) == ("2-3,6", "0", -1)


def test_what_is_left_as_it_is_is_not_named() -> None:
    """A container of a pool keeps its quota and memory nodes."""
    cpu = Told().create("ls", "one")
    assert (cpu.cpus, cpu.mems, cpu.HasField("quota")) == ("0-1", "", False)


@pytest.mark.parametrize("uid", ["be", "unknown"], ids=["bound to nothing", "not in the snapshot"])
def test_other_containers_are_asked_nothing_of(uid: str) -> None:
    """An empty answer changes nothing."""
    assert Told().create(uid, "one") is None


def test_an_update_by_kubelet_keeps_the_cpus() -> None:
    """Whatever kubelet wanted of them; beside another plugin ours gives way."""
    payload = call("lsr", "main", identity="one", cpus="0-7")
    answer, _, bound = Told().answer(SNAPSHOT, "UpdateContainer", payload)
    (update,) = message("UpdateContainerResponse").FromString(answer).update
    assert (update.container_id, update.ignore_failure) == ("one", True)
    assert update.linux.resources.cpu.cpus == "2-3,6"
    assert bound == OWN


def test_a_pod_that_starts_is_an_event_alone() -> None:
    """What is answered counts for nothing."""
    payload = call("lsr")
    for method, said in (
        ("RunPodSandbox", payload),
        ("StateChange", changed(Happening.RUN_POD_SANDBOX, payload)),
    ):
        answer, about, _ = Told().answer(SNAPSHOT, method, said)
        assert answer == b""
        assert about is not None
        assert about.pod_uid == "lsr"


def test_we_are_called_on_what_we_act_on() -> None:
    """By the bits of api.proto; each is known to NRI 0.3, and a validator we are not."""
    answer, _, _ = Told().answer(SNAPSHOT, "Configure", b"")
    events = message("ConfigureResponse").FromString(answer).events
    assert [bit + 1 for bit in range(32) if events >> bit & 1] == [1, 2, 4, 5, 7, 8, 11]


@pytest.mark.parametrize(
    ("method", "payload"),
    [
        pytest.param("StartContainer", call("lsr", "main"), id="a method without interest"),
        pytest.param("PutOnAHat", b"\x0a\x00", id="a method of a later release"),
        pytest.param(
            "StateChange", changed(6, call("lsr", "main")), id="an event without interest"
        ),
        pytest.param("StateChange", changed(99, b""), id="an event of a later release"),
        pytest.param("Shutdown", b"", id="the end"),
    ],
)
def test_what_is_of_no_interest_is_answered_empty(method: str, payload: bytes) -> None:
    """Never with an error, which would fail a container."""
    assert Told().answer(SNAPSHOT, method, payload) == (b"", None, None)


def test_what_is_no_message_is_refused_by_name() -> None:
    """The process answers it with nothing."""
    with pytest.raises(InputError, match="no message of NRI"):
        Told().answer(SNAPSHOT, "CreateContainer", b"\xff\xff")


def test_an_answer_that_is_late_is_empty() -> None:
    """The runtime holds its lock meanwhile; the cgroup tree is there for the container."""
    told = Told(0.0, ANSWER_SECONDS * 1.01)
    assert told.create("lsr", "one") is None
    assert told.create("lsr", "two").cpus == "2-3,6"


def test_a_container_that_runs_again_gets_its_cpus_again() -> None:
    """However often it ends."""
    told = Told()
    for number in range(5):
        assert told.create("lsr", str(number)).cpus == "2-3,6"
        told.made("lsr", str(number), cpus="2-3,6")
        told.started("lsr", str(number))
    assert told.conflict == ""


def test_a_container_that_did_not_start_with_our_cpus_is_made_without_them() -> None:
    """Once; such as beside a Pod's cgroup that has other CPUs. That is no other plugin."""
    told = Told()
    for _ in range(3):
        assert told.create("lsr", "one").cpus == "2-3,6"
        told.made("lsr", "one", cpus="2-3,6")
        assert told.create("lsr", "two") is None
        told.made("lsr", "two")
        told.started("lsr", "two")
    assert told.conflict == ""


def test_cpus_that_somebody_set_before_us_are_another_plugins() -> None:
    """Where kubelet sets none; no container fails for it."""
    told = Told()
    assert told.create("lsr", "one", cpus="4-5") is None
    assert told.conflict == "another NRI plugin set cpus='4-5' mems=''"


def test_cpus_of_kubelet_are_no_other_plugins() -> None:
    """Its static policy names its shared pool for a container that it does not pin."""
    told = Told()
    assert told.create("lsr", "one", KUBELETS, cpus="0-7").cpus == "2-3,6"
    told.made("lsr", "one", KUBELETS, cpus="2-3,6")
    told.started("lsr", "one")
    assert told.conflict == ""


def test_a_container_made_without_ours_alone_and_with_others_shows_a_plugin() -> None:
    """It is called after us; the runtime refuses what two plugins set."""
    told = Told()
    assert told.create("lsr", "one").cpus == "2-3,6"
    assert told.create("lsr", "two") is None
    told.made("lsr", "two", cpus="4-5")
    assert "beside another NRI plugin" in told.conflict


def test_a_container_that_failed_once_for_another_reason_shows_nobody() -> None:
    """Kubelet that ended in the middle of a call, or a full disk."""
    told = Told()
    told.create("lsr", "one")
    assert told.create("lsr", "two") is None
    told.made("lsr", "two")
    told.started("lsr", "two")
    assert told.conflict == ""
    assert told.create("lsr", "three").cpus == "2-3,6"


@pytest.mark.parametrize("seconds", [0.0, LOST_SECONDS], ids=["nothing set", "long apart"])
def test_containers_that_failed_one_by_one_for_other_reasons_show_nobody(seconds: float) -> None:
    """Where nobody sets CPUs, whenever it is; else not as long as they are far apart."""
    told, snapshot = Told(), KUBELETS if seconds else SNAPSHOT
    cpus = "0-5" if seconds else ""
    for uid in ("lsr", "ls"):
        told.create(uid, "one", snapshot, cpus=cpus)
        assert told.create(uid, "two", snapshot, cpus=cpus) is None
        told.made(uid, "two", snapshot, cpus=cpus)
        told.started(uid, "two")
        assert told.conflict == ""
        told.now += seconds


@pytest.mark.parametrize(
    ("asked", "given"),
    [("0-3", "0-1"), ("1-3", "1"), ("2-3", None), ("", "0-1")],
    ids=["all of the pool", "kubelet has just pinned one", "and all of them", "nothing asked"],
)
@pytest.mark.parametrize("is_update", [False, True], ids=["made", "updated"])
def test_a_container_of_a_pool_gets_no_cpu_that_kubelet_does_not_ask_for(
    asked: str, given: str | None, *, is_update: bool
) -> None:
    """Its static policy may have given one away since the last round; who has its own keeps it."""
    if not is_update:
        cpu = Told().create("ls", "one", KUBELETS, cpus=asked)
        assert (cpu and cpu.cpus) == given
        return
    cpus = "" if not asked else "0-7"
    for uid, wanted in (("ls", given), ("lsr", "2-3,6")):
        payload = call(uid, "main", identity="one", cpus=cpus, asks=asked)
        answer, _, _ = Told().answer(KUBELETS, "UpdateContainer", payload)
        updates = message("UpdateContainerResponse").FromString(answer).update
        assert [one.linux.resources.cpu.cpus for one in updates] == ([wanted] if wanted else [])


def test_two_of_them_show_a_plugin_beside_kubelets_own_cpus() -> None:
    """Where CPUs of kubelet and those of a plugin before us look the same."""
    told = Told()
    for uid in ("lsr", "ls"):
        assert told.conflict == ""
        assert told.create(uid, "one", KUBELETS, cpus="0-5")
        assert told.create(uid, "two", KUBELETS, cpus="0-5") is None
        told.made(uid, "two", KUBELETS, cpus="0-5")
    assert "beside another NRI plugin" in told.conflict


def test_a_pod_that_stops_leaves_nothing() -> None:
    """Of containers that it did not come to run."""
    told = Told()
    told.create("lsr", "one")
    told.happen(Happening.STOP_POD_SANDBOX, "lsr")
    assert told.create("lsr", "two").cpus == "2-3,6"


def test_the_snapshot_is_what_cgroups_are_planned_by() -> None:
    """CPUs of its own come without a quota; a Pod that stays as it is is not in it."""
    own = parse_cpuset("2-3")
    pods = {
        "lse": PodWanted(containers={"a": own, "b": own}, own=own, mems=parse_cpuset("1")),
        "ls": PodWanted(containers={"a": parse_cpuset("0-1")}),
        "doubted": PodWanted(containers={"a": own}, stays=True),
    }
    wanted = Wanted(pods=pods, pools=NO_POOLS)
    made = snapshot_of(wanted, kubelet_binds=True, v1=False)
    alone = Bound(cpus=own, mems=parse_cpuset("1"), quota=False)
    assert made.kubelet_binds
    assert made.bound == {
        ("lse", "a"): alone,
        ("lse", "b"): alone,
        ("lse", ""): alone,
        ("ls", "a"): Bound(cpus=parse_cpuset("0-1")),
    }
    on_v1 = snapshot_of(wanted, kubelet_binds=True, v1=True).bound
    assert {uid for uid, _ in on_v1} == {"lse"}, "runc copies the Pod's, as they are then"


def test_a_container_of_no_known_name_has_its_pods_own_cpus() -> None:
    """As of a Pod that kubelet has not told of yet, made with CPUs of kubelet's and updated."""
    own = parse_cpuset("2-3")
    wanted = Wanted(pods={"new": PodWanted(unnamed=own, own=own)}, pools=NO_POOLS)
    made = snapshot_of(wanted, kubelet_binds=True, v1=True)
    told = Told()
    assert told.create("new", "any", made, cpus="7").cpus == "2-3"
    assert told.create("other", "any", made, cpus="7") is None
