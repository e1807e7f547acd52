"""Both stock kube-schedulers and the gate are killed under a burst of claims, and go on."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

import pytest

from tests.support.kube.at_rest import prove
from tests.support.kube.bursts import eventually
from tests.support.kube.control_plane import ControlPlane, Program, free_port
from tests.support.kube.dra import (
    DRIVER,
    SCHEDULERS,
    SHARE,
    WHOLE,
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
from tests.support.kube.pods import pods_in
from tests.support.kube.schedulers import Identities, Served, extender

BURSTS: Final = {80: 6, 1_000: 60}
"""Pods -> Nodes of eight cards: three quarters of the Pods want a quarter of a card, so that all
find room, whichever cards are broken into."""
SEED: Final = 7
CHURNED: Final = 8
"""Pods that end between two kills at most, with as many that come."""


@dataclass(slots=True, kw_only=True)
class Burst:
    """Pods with claims, of which some end and some come between two kills."""

    plane: ControlPlane
    where: str
    rng: Random
    counts: Counter[str] = field(default_factory=Counter)

    def come(self, number: int) -> None:
        """Let so many Pods come, by turns of either scheduler."""
        first = self.counts["Pods"]
        pods = [
            claiming(
                f"p-{place}",
                template=WHOLE if place % 4 == 0 else SHARE,
                scheduler=SCHEDULERS[place // 4 % 2],
            )
            for place in range(first, first + number)
        ]
        self.counts["Pods"] += number
        submit(self.plane, self.where, pods)

    def go_on(self) -> None:
        """Let some Pods that are bound end, and as many of the same kinds come."""
        api = self.plane.api()
        bound = bound_in(api, self.where)
        for one in self.rng.sample(bound, min(len(bound), self.rng.randrange(CHURNED))):
            template = one["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
            name = f"p-{self.counts['Pods']}"
            self.counts["Pods"] += 1
            api.delete(f"{pods_in(self.where)}/{one['metadata']['name']}")
            for status in one["status"].get("resourceClaimStatuses", ()):
                api.delete(f"{claims_in(self.where)}/{status['resourceClaimName']}")
            again = claiming(name, template=template, scheduler=self.rng.choice(SCHEDULERS))
            submit(self.plane, self.where, [again])
            self.counts["ended"] += 1


@dataclass(slots=True, kw_only=True)
class Gate:
    """The service, started again on its port whenever it was killed."""

    start: Callable[..., Any]
    stack: contextlib.ExitStack
    served: Served | None = None

    def begin(self, **how: Any) -> Served:  # noqa: ANN401 - those of `extender`
        """Start it."""
        self.served = self.stack.enter_context(self.start(**how))
        return self.served

    def kill(self) -> None:
        """Kill it, and start it again without a wait."""
        assert self.served is not None
        assert self.served.process.poll() is None, self.served.words()
        self.served.kill()
        self.begin(remembered=True, ready=False)


def kill_scheduler(program: Program) -> None:
    """Kill a kube-scheduler, and start it again without a wait."""
    assert program.runs(), program.words()
    program.kill()
    program.start()


@pytest.mark.parametrize(
    ("ledger", "burst_of"),
    [
        ("sqlite", (80, 20)),
        pytest.param("sqlite", (1_000, 200), marks=pytest.mark.slow),
        pytest.param("postgres", (1_000, 200), marks=pytest.mark.slow),
    ],
    indirect=["ledger"],
)
def test_killed_again_and_again_no_card_is_doubled_and_no_claim_lost_or_leaked(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    identities: Identities,
    burst_of: tuple[int, int],
) -> None:
    """Every Pod is bound in the end, the ledger has what is stored, and nothing once all ended."""
    (pods, kills), where, port, rng = burst_of, namespace(), free_port(), Random(SEED)
    burst = Burst(plane=plane, where=where, rng=rng)
    start = partial(extender, plane, ledger, identities, gate=port, drivers=[DRIVER], forked=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(some_cards(plane, BURSTS[pods], prefix="killed"))
        programs = stack.enter_context(stock_schedulers(plane))
        gate = Gate(start=start, stack=stack)
        gate.begin()
        stack.enter_context(asked(plane, identities, port))
        add_templates(plane, where)
        burst.come(pods)
        victims: dict[str, Callable[[], None]] = {
            "gate": gate.kill,
            **{
                name: partial(kill_scheduler, one)
                for name, one in zip(SCHEDULERS, programs, strict=True)
            },
        }
        for _ in range(kills):
            time.sleep(rng.uniform(0.2, 3.0))
            who = rng.choice(sorted(victims))
            victims[who]()
            burst.counts[who] += 1
            burst.go_on()
            assert not (twice := doubled(given(plane.api(), where))), twice
        eventually(lambda: len(bound_in(plane.api(), where)) == pods)
        assert not doubled(given(plane.api(), where))
        eventually(lambda: len({claim for claim, _ in stored(plane)}) == pods)
        eventually(lambda: held(ledger) == stored(plane))
        remove_claims(plane, where)
        eventually(lambda: not held(ledger))
    prove(ledger, plane.folder)
    sys.stdout.write(f"pods={pods} kills={kills} seed={SEED} {dict(burst.counts.most_common())}\n")
