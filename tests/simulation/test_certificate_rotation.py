"""
Rotation with failures everywhere: at no moment does an API server refuse what a replica serves.

The API servers learn of a published bundle late, at a random moment within the time that the
rotator waits; clocks are wrong by as much as a leader's may be; every API call may fail or be the
last thing a process does; replicas come and go.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from certs.following import Follower
from certs.material import bundle_facts
from certs.plan import Phase, Settings, Wait
from certs.ports import ApiError, ConflictError
from certs.record import REQUESTED, read_record
from certs.reports import Reports
from certs.rotator import RotationObjects, Rotator
from certs.serving import Serving
from tenure.kube.lease import SKEW_MAX
from tests.support.certs import START, Clock, MemoryObjects, fail_with

HOOKS = (
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/tenure",
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/tenure",
)
PLACE = RotationObjects(namespace="tenure-system", secret="webhook-tls", configurations=HOOKS)
SETTINGS = Settings(
    names=("tenure-webhook.tenure-system.svc",),
    settle=timedelta(seconds=30),
    silent=timedelta(minutes=3),
)


@dataclass(slots=True)
class World:
    """One cluster: its objects, API servers that lag, replicas, and a rotator that crashes."""

    seed: int
    clock: Clock = field(default_factory=Clock)
    objects: MemoryObjects = field(default_factory=MemoryObjects)
    replicas: list[tuple[Serving, Follower]] = field(default_factory=list)
    started: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    trusted: dict[str, frozenset[str]] = field(default_factory=dict)
    on_the_way: deque[tuple[datetime, str, frozenset[str]]] = field(default_factory=deque)
    failing: float = 0.1
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        for path in HOOKS:
            self.objects.add_configuration(path, webhooks=2)
        self.objects.before = self._before

    async def _before(self, method: str, path: str) -> None:
        """Let others go first, or the call fail; a crash looks the same from outside."""
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(0)
        self.clock.pass_by(milliseconds=self.rng.randrange(1, 200))
        if self.rng.random() < self.failing:
            self.seen["failed calls"] += 1
            raise fail_with(f"{method} {path}") if self.rng.random() < 0.7 else ConflictError(path)

    def learn(self) -> None:
        """Let the API servers learn what is published: late, but in order."""
        for path in HOOKS:
            bundle = frozenset(one.fingerprint for one in bundle_facts(self.objects.bundle(path)))
            waiting = [(at, one) for at, name, one in self.on_the_way if name == path]
            at, newest = waiting[-1] if waiting else (START, self.trusted.get(path))
            if bundle != newest:
                late = self.clock.now + timedelta(seconds=self.rng.uniform(0, 20))
                self.on_the_way.append((max(at, late), path, bundle))
        for _ in range(len(self.on_the_way)):
            at, path, bundle = self.on_the_way.popleft()
            if at <= self.clock.now:
                self.trusted[path] = bundle
            else:
                self.on_the_way.append((at, path, bundle))

    def check(self) -> None:
        """Every replica that serves is trusted by every API server that trusts anybody."""
        secret = self.objects.objects.get(PLACE.secret_path)
        record = None if secret is None else read_record(secret)
        known = (
            {}
            if record is None
            else {facts.subject_key: facts.fingerprint for facts in bundle_facts(record.bundle)}
        )
        for path in HOOKS:
            trusted = self.trusted.get(path)
            if not trusted:
                continue
            for serving, _ in self.replicas:
                if serving.leaf is not None:
                    signer = known.get(serving.leaf.authority_key)
                    assert signer in trusted, (self.seed, path, self.clock.now)

    def someones_clock(self) -> Callable[[], datetime]:
        """Return a clock that is as wrong as one of a leader may be."""
        wrong = timedelta(seconds=self.rng.uniform(-1, 1) * SKEW_MAX.total_seconds())
        return lambda: self.clock() + wrong

    def new_replica(self) -> None:
        """Start a replica."""
        self.started += 1
        serving = Serving()
        reports = Reports(self.objects, PLACE.namespace, PLACE.secret)
        follower = Follower(
            self.objects,
            reports,
            PLACE.secret_path,
            serving,
            replica=f"replica-{self.started}",
            names=SETTINGS.names,
            clock=self.someones_clock(),
        )
        self.replicas.append((serving, follower))

    async def work(self, acts: int) -> None:
        """Do things one after the other, while others do theirs."""
        for _ in range(acts):
            await self.act()
            self.learn()
            self.check()

    async def act(self) -> None:
        """Let one process do one thing, or fail at it."""
        choice = self.rng.random()
        try:
            if choice < 0.45:
                reports = Reports(self.objects, PLACE.namespace, PLACE.secret)
                rotator = Rotator(self.objects, reports, PLACE, SETTINGS, self.someones_clock())
                step = await rotator.step()
                self.seen[type(step).__name__] += 1
            elif choice < 0.8 and self.replicas:
                await self.rng.choice(self.replicas)[1].look()
            elif choice < 0.87 and len(self.replicas) < 4:
                self.new_replica()
            elif choice < 0.93 and len(self.replicas) > 1:
                _, follower = self.replicas.pop(self.rng.randrange(len(self.replicas)))
                if self.rng.random() < 0.5:  # else it was killed and says nothing
                    await follower.leave()
            elif choice < 0.95:
                self.request()
            else:
                self.clock.pass_by(seconds=self.rng.uniform(0, 5))
        except (ApiError, ConflictError):
            pass

    def request(self) -> None:
        """Ask for a rotation, as `tenure certs rotate` does."""
        secret = self.objects.objects.get(PLACE.secret_path)
        if secret is not None:
            secret["metadata"].setdefault("annotations", {})[REQUESTED] = "now"


@pytest.mark.parametrize(
    "seed",
    [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 6))],
)
def test_no_call_fails_while_certificates_rotate(seed: int) -> None:
    """Several rotations a run, with crashes and late API servers; and each run gets somewhere."""
    world = World(seed=seed)
    world.new_replica()

    async def run() -> None:
        await asyncio.gather(*(world.work(500) for _ in range(3)))

    asyncio.run(run())
    assert world.seen["Finish"] >= 2, world.seen
    assert world.seen["failed calls"] > 100


def test_a_rotation_ends_once_the_failures_do() -> None:
    """Whatever state the failures left, the rotator comes to rest with one authority."""
    world = World(seed=99)
    world.new_replica()

    async def run() -> None:
        await asyncio.gather(*(world.work(100) for _ in range(3)))
        world.failing = 0.0
        world.request()
        reports = Reports(world.objects, PLACE.namespace, PLACE.secret)
        rotator = Rotator(world.objects, reports, PLACE, SETTINGS, world.clock)
        for _ in range(200):
            for _, follower in world.replicas:
                await follower.look()
            step = await rotator.advance()
            assert isinstance(step, Wait)
            world.clock.pass_by(seconds=5)
            world.learn()
            world.check()

    asyncio.run(run())
    record = read_record(world.objects.objects[PLACE.secret_path])
    assert record is not None
    assert (record.phase, record.other, record.requested) == (Phase.STABLE, None, False)
    for path in HOOKS:
        assert world.objects.bundle(path) == world.objects.bundle(path, 1) == record.bundle
