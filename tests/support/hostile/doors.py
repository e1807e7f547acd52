"""A live service behind the doors that it has: TLS listeners on the loopback, a ledger on disk."""

from __future__ import annotations

import asyncio
import json
import ssl
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp

from certs.material import KeyPair
from certs.serving import Folder, Serving
from ledger.domain.log.events import LedgerEvent
from ledger.domain.log.state import Folding, Holding
from ledger.store.proving.verify import verify
from scheduler.service.api.acts import ActRoutes
from scheduler.service.api.agents import AgentRoutes
from scheduler.service.api.http import Route
from scheduler.service.api.refusals import RefusalRoutes
from scheduler.service.api.words import WEBHOOK_ACCOUNT, user_of
from scheduler.service.binding import pod_path
from scheduler.service.claims import claim_path
from scheduler.service.http import calls_app, extender_calls, gate_calls
from scheduler.service.metrics import Metrics
from scheduler.service.proofs import Signing
from tenure.serving.connections import Connections
from tenure.serving.listening import Http2, listening
from tenure.serving.options import KUBE_API_SERVER, Address
from tenure.serving.probes import probes_app
from tenure.serving.scheduling.api import Answering, ApiListener, questions
from tenure.serving.scheduling.options import SchedulerOptions
from tenure.serving.scheduling.signing import ServingFolder
from tenure.serving.webhook_options import WebhookOptions
from tests.support import api_callers
from tests.support.agent_scene import AGENT, CPUS
from tests.support.api_callers import NAME, api_options, authority, server_folder
from tests.support.dra import DRIVER, card, resource_claim, resource_slice
from tests.support.dra import result as device
from tests.support.http2 import http2_client
from tests.support.kube.control_plane import free_port
from tests.support.kube.schedulers import KUBE_SCHEDULER, client_leaf
from tests.support.objects import container, pod
from tests.support.reconciled import CLUSTER, LEDGER_KEY, PROOF_KEY, Cluster, StoreLedger
from tests.support.reviews import corpus
from tests.support.stores import SqliteStore
from webhook.decide.facts import QuotaFact
from webhook.decide.settings import DEFAULT_ADMISSION, AdmissionSettings
from webhook.server import metrics as webhook
from webhook.server.app import Admission, hooks_app
from webhook.server.ports import RefusalRecord

Json = dict[str, Any]
T = TypeVar("T")

SECONDS_MAX: Final = 300.0
"""More than any play takes, on however busy a machine."""
EXTENDER, GATE, API, PROBES, WEBHOOK = "extender", "gate", "api", "probes", "webhook"
VERBS: Final = ("filter", "prioritize", "preempt", "bind")
REFUSED: Final = 0
"""The connection ended without an answer."""
_DISK: Final = tempfile.TemporaryDirectory(prefix="tenure-doors-")


@cache
def cluster_authority() -> KeyPair:
    """Return the authority of the cluster's certificates, of servers and of callers."""
    return authority("cluster")


@cache
def empty_ledger() -> SqliteStore:
    """Return a ledger without events, made once."""
    store = SqliteStore(path=Path(_DISK.name) / "empty.db")
    store.open("create").close()
    return store


@cache
def leaf(name: str) -> KeyPair:
    """Return a leaf of the cluster's authority with this common name."""
    return client_leaf(cluster_authority(), name)


@dataclass(slots=True)
class Admits:
    """What the webhook is told of the cluster, and the refusals that it hands on."""

    current: AdmissionSettings = DEFAULT_ADMISSION
    records: list[RefusalRecord] = field(default_factory=list)

    async def namespace_labels(self, _namespace: str) -> Mapping[str, str]:
        """Return that admission holds everywhere."""
        return {"tenure.sh/managed": "true"}

    async def quotas(self, _namespace: str) -> tuple[QuotaFact, ...]:
        """Return no quotas."""
        return ()

    async def pod(self, _namespace: str, _name: str) -> Mapping[str, object] | None:
        """Return no Pod."""
        return None


class Doors:
    """
    A live service that whoever calls it attacks.

    The Pods `p` and `q` of the namespace `ml` hold half a card of `n0` and `n1` each. The cards of
    `n2` are given by claims. The claim `real` of `ml` waits for one.

    Args:
        is_open: the gate is `--gate-open`, and the webhook has no `--client-ca`.

    Attributes:
        who: the API server's word on callers of `--api`.
        admits: what the webhook works with.
        ports: of the doors, while they are open.
    """

    def __init__(self, *, is_open: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=_DISK.name))
        store = empty_ledger().copy(self.folder / "ledger.db")
        self.url, self.ledger = store.url, store.open()
        self.cluster = Cluster(nodes=3, ledger=StoreLedger(self.ledger), drivers=(DRIVER,))
        cards = resource_slice([card("gpu-0", "GPU-n2-0"), card("gpu-1", "GPU-n2-1")], node="n2")
        cards["metadata"]["uid"] = "slice"
        self.cluster.server.put("/slices/n2", cards)
        self.cluster.bound_pods()
        self.store_claim("real")
        self.who = api_callers.Cluster(tokens={"good": "anna"}, may={"anna": {""}})
        self.admits = Admits()
        self.metrics = Metrics()
        self.ports: dict[str, int] = {}
        self._contexts: dict[tuple[KeyPair | None, bool], ssl.SSLContext] = {}
        (self.folder / "clients.crt").write_bytes(cluster_authority().certificate)
        self.options = replace(
            api_options(free_port(), server_folder(self.folder / "server", cluster_authority())),
            gate=Address(NAME, 1),
            driver=(DRIVER,),
            gate_client_ca=None if is_open else self.folder / "clients.crt",
            gate_open=is_open,
            name=(NAME,),
            gate_name=(NAME,),
        )
        self.hooks = WebhookOptions(
            name=(NAME,), client_ca=None if is_open else self.folder / "clients.crt"
        )
        self.cluster.live.guard.gate.confirming.knows_callers = not is_open

    # --- the cluster ----------------------------------------------------------------------------

    def store_claim(self, name: str, *results: Json, namespace: str = "ml") -> Json:
        """Let the API server store a claim, which then has these devices."""
        made = resource_claim(name, *results, node="n2", namespace=namespace)
        made["metadata"]["annotations"] = {}
        stored = self.cluster.server.put(claim_path(namespace, name), made)
        self.cluster.settle()
        return stored

    def claim(self, name: str = "real", *, namespace: str = "ml") -> Json:
        """Return a claim as the API server has it."""
        found = self.cluster.server.read(claim_path(namespace, name))
        assert found is not None
        return found

    def put_in(
        self, namespace: str, name: str, annotations: Mapping[str, str], node: str = ""
    ) -> None:
        """Create a Pod that asks for half a card in a namespace, which runs where it has a node."""
        made = pod(container(limits={"koordinator.sh/gpu": "50"}), name=name, uid=f"uid-{name}")
        more = {**annotations, "tenure.sh/admitted": "true"}
        made["metadata"] |= {"namespace": namespace, "annotations": more}
        made["spec"]["schedulerName"] = "tenure"
        made["status"] = {"phase": "Running" if node else "Pending"}
        if node:
            made["spec"]["nodeName"] = node
        self.cluster.server.put(pod_path(namespace, name), made)
        self.cluster.settle()

    async def filter(self, namespace: str, name: str) -> Json:
        """Ask as kube-scheduler which nodes may take a Pod."""
        made = self.cluster.server.read(pod_path(namespace, name))
        body = json.dumps({"Pod": made, "NodeNames": self.cluster.names}).encode()
        status, said = await self.ask(EXTENDER, "/filter", body, own=leaf(KUBE_SCHEDULER))
        assert status == 200
        answer: Json = json.loads(said)
        return answer

    def shares(self, name: str) -> list[tuple[str, int]]:
        """Return the cards that a Pod holds by the service, with their percent."""
        view = self.cluster.live.view
        states = [view.recorded(uid) for uid in view.holding_nodes()]
        return [
            (share.device_id, share.core_percent)
            for state in states
            if state
            for one in state.holdings.values()
            if one.pod_uid == f"uid-{name}"
            for share in one.shares
        ]

    @property
    def asked(self) -> list[str]:
        """Return the paths of which the API server was asked."""
        return [path for _, path in self.cluster.api.calls]

    @property
    def recorded(self) -> list[LedgerEvent]:
        """Return what the ledger has."""
        return self.cluster.ledger.log

    def events(self) -> list[str]:
        """Return the paths of the Events that people read."""
        return [path for path in self.cluster.server.objects if "/events/" in path]

    def bound(self, *pods: str) -> int:
        """Return how many of these Pods hold something by the service."""
        view = self.cluster.live.view
        states = [view.recorded(uid) for uid in view.holding_nodes()]
        held = {one.pod_uid for state in states if state for one in state.holdings.values()}
        return len(held & {f"uid-{name}" for name in pods})

    def claims_of(self, name: str) -> list[Holding]:
        """Return what claims hold on a node."""
        [state] = self.cluster.live.releasing.states(name)
        return list(state.claims.values())

    def holders(self) -> dict[str, int]:
        """
        Return how many each Node's holders are, by the ledger's events.

        It is proved, and the service counts the same.
        """
        assert verify(self.ledger).findings == ()
        folding, view = Folding(), self.cluster.live.view
        for position, one in enumerate(self.ledger.read_events(), 1):
            folding.add(position, one.event)
        found = {}
        for node in folding.state.nodes.values():
            found[node.name] = len(node.holdings) + len(node.claims)
            live = view.recorded(node.uid)
            assert live is not None
            assert (live.holdings.keys(), live.claims.keys()) == (
                node.holdings.keys(),
                node.claims.keys(),
            )
        return found

    # --- the doors ------------------------------------------------------------------------------

    def attack(self, act: Callable[[Doors], Awaitable[T]]) -> T:
        """Open the doors while somebody acts, and return what came of it; the ledger is sound."""

        async def main() -> T:
            async with asyncio.timeout(SECONDS_MAX), self._opened():
                found = await act(self)
                await self._serves()
                return found

        found = asyncio.run(main())
        self.cluster.settle()
        self.holders()
        return found

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        live, options, here = self.cluster.live, self.options, (NAME, 0)
        async with AsyncExitStack() as stack:

            async def listen(name: str, app: Any, connections: Connections, **how: Any) -> None:  # noqa: ANN401 - those of `listening`
                self.ports[name] = await stack.enter_async_context(
                    listening(app, here, connections, finish_seconds=1.0, **how)
                )

            calls = extender_calls(live.extender, self.metrics)
            connections = Connections(names=options.client_names)
            http2 = Http2(answer=calls.answer_path, body_bytes_max=calls.limits.body_bytes_max)
            tls = ServingFolder(options, self.metrics).serving.context
            app = calls_app(calls, connections.answering)
            await listen(EXTENDER, app, connections, tls=tls, http2=http2)

            serving = _serving(options.gate_client_ca)
            _folder(options, serving, options.gate_names).look()
            connections = Connections(names=options.gate_client_names)
            app = calls_app(gate_calls(live.guard.gate.answer, self.metrics), connections.answering)
            await listen(GATE, app, connections, tls=serving.context)

            app = probes_app(self.metrics.registry, str)
            await listen(PROBES, app, Connections())

            admission = Admission(
                settings=self.admits,
                lookups=self.admits,
                take_refusal=self.admits.records.append,
                metrics=webhook.Metrics(),
            )
            serving = _serving(self.hooks.client_ca)
            _folder(options, serving, self.hooks.names).look()
            connections = Connections(names=self.hooks.client_names)
            await listen(WEBHOOK, hooks_app(admission), connections, tls=serving.context)

            listener = ApiListener(options, self.who, lambda: datetime.now(UTC))
            answering = Answering(self.url)
            stack.callback(answering.close)
            routes = [*questions(self.who, answering), *self.routes()]
            await listener.read_rule()
            listener._callers._junk.now = lambda: self.cluster.clock.now
            await stack.enter_async_context(listener.listening(routes))
            assert options.api is not None
            self.ports[API] = options.api.port
            yield

    async def _serves(self) -> None:
        """Expect that honest callers are answered."""
        asked = pod(container(limits={"koordinator.sh/gpu": 10}), name="honest", uid="honest")
        body = json.dumps({"Pod": asked, "NodeNames": ["n0", "n1"]}).encode()
        status, said = await self.ask(EXTENDER, "/filter", body, own=leaf(KUBE_SCHEDULER))
        assert status == 200
        assert json.loads(said)["NodeNames"]
        admitted = await self.admit("mutate", corpus()[0], leaf(KUBE_API_SERVER))
        assert admitted[0] == 200
        assert (await self.ask(API, "/apis", method="GET"))[0] == 200
        assert (await self.ask(PROBES, "/livez", method="GET"))[0] == 200

    def routes(self) -> list[Route]:
        """Return what agents, webhooks and those who order something are answered."""
        live, ledger = self.cluster.live, self.cluster.ledger

        async def checkpoint(_kept: str, _by: str) -> Json:
            return {}

        signing = Signing(
            cluster=CLUSTER,
            incarnation=lambda: "first",
            proof_key=PROOF_KEY,
            ledger_key=LEDGER_KEY,
            machine_of=lambda _: ("", ""),
        )
        agents = AgentRoutes(
            live.agents,
            live.view,
            proofs=signing,
            user=AGENT,
            reader=CPUS,
            why_not=str,
            checkpoint=checkpoint,
        )
        acts = ActRoutes(live.releasing, live.guard.gate, live.agents, self.who, why_not=str)
        webhook = user_of(WEBHOOK_ACCOUNT)
        refusals = RefusalRoutes(
            ledger, live.books.recorded, self.cluster.clock, user=webhook, why_not=str
        )
        return [*agents.routes(), *acts.routes(), *refusals.routes()]

    async def ask(
        self,
        door: str,
        path: str,
        body: bytes = b"{}",
        *,
        method: str = "POST",
        own: KeyPair | None = None,
        headers: Mapping[str, str] | None = None,
        is_http2: bool = False,
        is_tls: bool = True,
    ) -> tuple[int, bytes]:
        """Ask at a door with a leaf or without; see `REFUSED` for the status of no answer."""
        tls = self._tls(own, is_http2=is_http2) if is_tls and door != PROBES else None
        if is_http2:
            assert tls is not None
            with suppress(OSError):
                async with http2_client(self.ports[door], tls) as client:
                    return await client.ask(path, body, method=method)
            return REFUSED, b""
        url = f"http{'' if tls is None else 's'}://{NAME}:{self.ports[door]}{path}"
        with suppress(aiohttp.ClientError, OSError):
            async with (
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls or True)) as session,
                session.request(
                    method, url, data=body if method == "POST" else None, headers=headers
                ) as answer,
            ):
                return answer.status, await answer.read()
        return REFUSED, b""

    async def admit(
        self, hook: str, review: Json, own: KeyPair | None = None
    ) -> tuple[int, Json | None]:
        """Let the webhook review a write; return the status, and the response if any."""
        body, headers = json.dumps(review).encode(), {"Content-Type": "application/json"}
        status, said = await self.ask(WEBHOOK, f"/{hook}", body, own=own, headers=headers)
        return status, json.loads(said)["response"] if status == 200 else None

    async def review(
        self, old: Json, new: Json, own: KeyPair | None = None
    ) -> tuple[int, Json | None]:
        """Let the gate review a write of a claim; return the status, and the response if any."""
        request = {"uid": "r", "oldObject": old, "object": new, "dryRun": False}
        body = json.dumps({"request": request}).encode()
        status, said = await self.ask(GATE, "/claims", body, own=own)
        return status, json.loads(said)["response"] if status == 200 else None

    def _tls(self, own: KeyPair | None, *, is_http2: bool) -> ssl.SSLContext:
        if (own, is_http2) in self._contexts:
            return self._contexts[own, is_http2]
        context = ssl.create_default_context(cadata=cluster_authority().certificate.decode())
        if own is not None:
            (self.folder / "own.pem").write_bytes(own.certificate + own.key)
            context.load_cert_chain(self.folder / "own.pem")
        self._contexts[own, is_http2] = context
        return context


def _serving(callers: Path | None) -> Serving:
    return Serving(clients=None if callers is None else callers.read_bytes())


def _folder(options: SchedulerOptions, serving: Serving, names: tuple[str, ...]) -> Folder:
    return Folder(options.certificates, serving, names=names, clock=lambda: datetime.now(UTC))


def given(claim: Json, number: int = 0, **metadata: str) -> Json:
    """Return a claim as a write that gives it a card of `n2` shows it."""
    made = resource_claim(claim["metadata"]["name"], device(f"gpu-{number}", node="n2"), node="n2")
    return {**made, "metadata": {**claim["metadata"], **metadata}}


def counted(statuses: Counter[int] | list[int]) -> str:
    """Return statuses in words, such as `3 of 3 refused`, `2 of 3 answered 401`."""
    counts = Counter(statuses)
    every = counts.total()
    return ", ".join(
        f"{counts[one]} of {every} {'refused' if one == REFUSED else f'answered {one}'}"
        for one in sorted(counts)
    )
