"""Two replicas of the gate behind one address: how long nothing is granted while one takes over."""

from __future__ import annotations

import contextlib
import json
import signal
import ssl
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Final

import pytest

from ledger.domain.log.events import ClaimReserved
from ledger.store.open import open_ledger
from tests.e2e.test_replicas import OURS, Labelled, is_labelled
from tests.support.kube.api import Api
from tests.support.kube.at_rest import PATIENCE_SECONDS, prove, wait
from tests.support.kube.balancer import Backend, balancing
from tests.support.kube.bursts import remove_pods
from tests.support.kube.control_plane import CALLING, ControlPlane, free_port
from tests.support.kube.dra import (
    DRIVER,
    SCHEDULERS,
    SHARE,
    add_templates,
    asked,
    bound_in,
    claiming,
    claims_in,
    doubled,
    given,
    held,
    remove_claims,
    some_cards,
    stock_schedulers,
    stored,
    submit,
)
from tests.support.kube.pods import pod
from tests.support.kube.schedulers import Identities, Served, extender

NAMES: Final = ("scheduler-a", "scheduler-b")
NODES: Final = 24
SHARES: Final = NODES * 8 * 4
"""Quarters of cards, of which every Pod wants one."""
EVERY_SECONDS: Final = 0.4
AFTER: Final = 12
"""Pods that are bound before a change, and after it."""


@dataclass(slots=True, kw_only=True)
class Coming:
    """Pods that come one after the other until the block ends."""

    plane: ControlPlane
    where: str
    count: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def _come(self) -> None:
        while not self._over.wait(EVERY_SECONDS) and self.count < SHARES:
            submit(self.plane, self.where, [claiming(f"p-{self.count}", template=SHARE)])
            self.count += 1

    @contextlib.contextmanager
    def begun(self) -> Iterator[None]:
        """Let them come."""
        thread = threading.Thread(target=self._come, name="coming")
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(60)


@dataclass(slots=True, kw_only=True)
class Replicas:
    """Who serves by which name, and at which port the gate of each is asked."""

    start: Callable[..., contextlib.AbstractContextManager[Served]]
    stack: contextlib.ExitStack
    gates: Mapping[str, int] = field(default_factory=lambda: {one: free_port() for one in NAMES})
    served: dict[str, Served] = field(default_factory=dict)

    def begin(self, name: str, *, leading: bool, remembered: bool) -> None:
        """Start one, and wait until it leads or stands by."""
        entered = self.start(
            gate=self.gates[name], replica=name, pod=name, leading=leading, remembered=remembered
        )
        self.served[name] = self.stack.enter_context(entered)


def answered(port: int, plane: ControlPlane, where: str, identities: Identities) -> int:
    """Return the status of a gate's answer about a claim, asked itself; 0 where it can't be."""
    claim = plane.api().get(claims_in(where)).body["items"][0]
    review = {"request": {"uid": "asked", "object": claim, "oldObject": claim, "dryRun": True}}
    tls = ssl.create_default_context(cafile=str(identities.server / "ca.crt"))
    tls.load_cert_chain(plane.folder / CALLING)
    url = f"https://127.0.0.1:{port}/claims"
    asking = urllib.request.Request(
        url, json.dumps(review).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(asking, timeout=20, context=tls) as said:
            return int(said.status)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return int(refusal.code)
    except OSError:
        return 0


def bound_besides(api: Api, where: str) -> None:
    """Wait until some more Pods are bound."""
    least = len(bound_in(api, where)) + AFTER
    wait(lambda: len(bound_in(api, where)) >= least)


def grants(ledger: str, since: float = 0.0) -> list[float]:
    """Return when claims that are held were granted since then, by the ledger's wall clock."""
    claims = {claim for claim, _ in held(ledger)}
    with open_ledger(ledger, mode="read") as opened:
        last = {
            one.event.claim_uid: one.envelope.wall_us / 1e6
            for one in opened.read_events()
            if isinstance(one.event, ClaimReserved)
        }
    return sorted(when for claim, when in last.items() if claim in claims and when >= since)


@pytest.mark.slow
@pytest.mark.parametrize("ledger", ["postgres"], indirect=True)
def test_a_change_of_leader_grants_nothing_twice_and_tells_how_long_it_granted_nothing(
    plane: ControlPlane, namespace: Callable[..., str], ledger: str, identities: Identities
) -> None:
    """Killed, told to end, stopped and woken up: who does not lead says 503, and all are bound."""
    where, api = namespace(), plane.api()
    told: list[str] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(some_cards(plane, NODES, prefix="handed"))
        stack.enter_context(stock_schedulers(plane, SCHEDULERS[:1]))
        for name in NAMES:
            made = api.create(OURS, pod(name, {}, schedulerName="nobody"))
            assert made.ok, made.message
            stack.callback(remove_pods, plane, OURS, [name])
        start = partial(extender, plane, ledger, identities, drivers=[DRIVER], forked=True)
        replicas = Replicas(start=start, stack=stack)
        leader, standby = NAMES
        replicas.begin(leader, leading=True, remembered=False)
        wait(partial(is_labelled, plane, leader))
        replicas.begin(standby, leading=False, remembered=True)
        backends: list[Backend] = [
            Labelled(port=port, probes=replicas.served[name].probes, plane=plane, pod=name)
            for name, port in replicas.gates.items()
        ]
        balancer = stack.enter_context(balancing(backends))
        stack.enter_context(asked(plane, identities, balancer.port))
        add_templates(plane, where)
        coming = Coming(plane=plane, where=where)
        with coming.begun():
            for sent in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP):
                bound_besides(api, where)
                ask = partial(answered, plane=plane, where=where, identities=identities)
                assert ask(replicas.gates[leader]) == 200
                assert ask(replicas.gates[standby]) == 503
                since = grants(ledger)[-1]
                old, new = replicas.served[leader], replicas.served[standby]
                old.process.send_signal(sent)
                try:
                    wait(new.leads)
                    bound_besides(api, where)
                finally:
                    old.process.send_signal(signal.SIGCONT)
                assert ask(replicas.gates[leader]) in (0, 503), "a deposed one answers"
                longest = max(later - one for one, later in pairwise(grants(ledger, since)))
                told.append(f"{sent.name} {longest:.1f} s")
                assert not doubled(given(api, where))
                old.process.wait(PATIENCE_SECONDS)
                leader, standby = standby, leader
                replicas.begin(standby, leading=False, remembered=True)
        assert coming.count < SHARES, "there was no room left, and so nothing to grant"
        wait(lambda: len(bound_in(api, where)) == coming.count)
        wait(lambda: held(ledger) == stored(plane))
        assert len(stored(plane)) == coming.count
        assert not doubled(given(api, where))
        remove_claims(plane, where)
        wait(lambda: not held(ledger))
    prove(ledger, plane.folder)
    sys.stdout.write(f"longest time without a grant: {', '.join(told)}; Pods={coming.count}\n")
