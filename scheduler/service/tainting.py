"""
Tells schedulers, by DeviceTaintRules, which devices they try in vain.

Rule: docs/adr/0027, docs/dra.md. Where the API serves no such rules, refusals repeat at the Pod's
backoff.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

from certs.ports import ApiError, ConflictError, Object, Objects, api_path
from ledger.domain.errors import InputError
from ledger.domain.log.events import ClaimResult
from scheduler.gate.claims import Allocated
from scheduler.gate.decide import Accounts
from scheduler.gate.exchange import Device, device_of
from scheduler.gate.taints import TaintRule, is_barred, read_rule, rule_name, rule_of
from scheduler.service.budgets import Delays
from scheduler.service.ports import Clock, WhyNot
from scheduler.service.wakeups import Wakeups

VERSIONS: Final = ("v1", "v1beta2")
"""In which the API may serve rules: v1beta2 of 1.36, behind a feature gate; v1 of 1.37."""
ABSENT_SECONDS: Final = 60.0
"""How long an API that serves none is left alone."""
DEVICES_MAX: Final = 1_000
"""Devices that are passed over by rules of ours at most."""
_NOT_FOUND: Final = 404

_log: Final = logging.getLogger("tenure.scheduler.tainting")


def rules_path(version: str, *name: str) -> str:
    """Return the path of all rules, or of one of them."""
    return api_path(f"resource.k8s.io/{version}", "devicetaintrules", *name)


class RuleBook:
    """A sink of DeviceTaintRules, in whichever version they are served."""

    def __init__(self) -> None:
        self.rules: dict[str, TaintRule] = {}
        self.ours: set[Device] = set()

    def put(self, uid: str, item: Object) -> None:
        """Take a rule that came or changed."""
        self.drop(uid)
        try:
            rule = self.rules[uid] = read_rule(item)
        except InputError as error:
            _log.warning("unreadable rule", extra={"rule": uid, "reason": str(error)})
            return
        if rule.is_ours:
            self.ours.add((rule.driver, rule.pool, rule.device))

    def drop(self, uid: str) -> None:
        """Forget a rule that is gone."""
        rule = self.rules.pop(uid, None)
        if rule is not None and rule.is_ours:
            self.ours.discard((rule.driver, rule.pool, rule.device))

    def bars(self, device: Device) -> bool:
        """Tell whether a rule keeps newcomers off a device, who may tolerate it."""
        return any(rule.bars and rule.selects(device) for rule in self.rules.values())


class Tainting:
    """
    Makes and takes away our rules.

    Args:
        node_of: the name of the node of a device, empty of one that is in no whole pool.
        is_shown: tells of a claim's UID whether the API shows it allocated.
    """

    def __init__(
        self,
        book: RuleBook,
        accounts: Accounts,
        api: Objects,
        clock: Clock,
        wakeups: Wakeups,
        *,
        node_of: Callable[[Device], str],
        is_shown: Callable[[str], bool],
        why_not: WhyNot,
    ) -> None:
        self._book = book
        self._accounts = accounts
        self._api = api
        self._clock = clock
        self._node_of = node_of
        self._is_shown = is_shown
        self._why_not = why_not
        self._tried: dict[Device, Allocated] = {}  # what was refused there last
        self._delays = Delays[Device](clock.monotonic)
        self._served: str | None = None
        self._absent_until = float("-inf")
        wakeups.allocation_refused.subscribe(self.refused)

    def refused(self, allocated: Allocated) -> None:
        """Take note of an allocation that was refused for want of room."""
        for device, tried in _by_device(allocated):
            if len(self._tried) < DEVICES_MAX and self._is_barred(tried):
                self._tried[device] = tried

    async def settle(self) -> None:
        """
        Make the rules that are wanted, and take away those whose reason has gone.

        It waits longer after each refusal by the API, and where a foreign rule has the name.
        """
        if self._why_not():
            return
        for device, tried in list(self._tried.items()):
            if not self._is_barred(tried):
                del self._tried[device]
                self._delays.over(device)
            elif device in self._book.ours:
                self._delays.over(device)
            elif self._delays.is_due(device):
                await self._make(device)
        for device in sorted(self._book.ours - self._tried.keys()):
            node = self._node_of(device)  # another replica may have made it: what was tried is lost
            is_wanted = bool(node) and self._is_barred(_all_of(device, node))
            if not is_wanted and self._delays.is_due(device):
                await self._take_away(device)

    def _is_barred(self, tried: Allocated) -> bool:
        return is_barred(tried, self._accounts, self._is_shown)

    async def _make(self, device: Device) -> None:
        if self._clock.monotonic() < self._absent_until:
            return
        for version in VERSIONS if self._served is None else (self._served,):
            try:
                await self._api.create(rules_path(version), rule_of(device, version))
            except ConflictError:
                self._served = version
                self._delays.failed(device)  # it is there, and the watch tells whose it is
            except ApiError as error:
                if error.status == _NOT_FOUND:
                    continue
                self._delays.failed(device)
                _log.warning("not tainted", extra={"device": device, "reason": str(error)})
            else:
                self._served = version
                _log.info("tainted", extra={"device": "/".join(device)})
            return
        self._served = None
        self._absent_until = self._clock.monotonic() + ABSENT_SECONDS

    async def _take_away(self, device: Device) -> None:
        is_gone = False
        for version in VERSIONS if self._served is None else (self._served,):
            try:
                await self._api.remove(rules_path(version, rule_name(device)))
            except (ApiError, ConflictError) as error:
                _log.warning("still tainted", extra={"device": device, "reason": str(error)})
            else:
                is_gone = True
        if is_gone:
            self._delays.over(device)
        else:
            self._delays.failed(device)


def _by_device(allocated: Allocated) -> Iterator[tuple[Device, Allocated]]:
    on: dict[Device, list[ClaimResult]] = {}
    for one in allocated.results:
        on.setdefault(device_of(one), []).append(one)
    for device, there in on.items():
        yield device, Allocated(node_name=allocated.node_name, results=tuple(there))


def _all_of(device: Device, node: str) -> Allocated:
    driver, pool, name = device
    return Allocated(
        node_name=node,
        results=(ClaimResult(request="", driver=driver, pool=pool, device=name),),
    )
