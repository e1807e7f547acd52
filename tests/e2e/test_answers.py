"""People ask the live service through a real API server, and directly, and see what is theirs."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import yaml

from certs.material import KeyPair
from scheduler.service.freshness import API_AWAY, AWAY
from tests.support.kube.bursts import eventually, remove_pods
from tests.support.kube.control_plane import (
    ADMIN,
    KUBELET,
    SCHEDULER_ACCOUNT,
    ControlPlane,
    free_port,
)
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import (
    API_NAME,
    Identities,
    Served,
    add_gpu_node,
    asking,
    client_leaf,
    extender,
    remove_node,
)
from tests.support.kube.webhooks import apply, collection_of, remove
from tests.support.manifests import printed_scheduler
from tests.support.postgres import own_server
from tests.support.process import tenure
from tests.support.relay import relay_to
from tests.support.stores import PostgresStore

NODE: Final = "answered"
GROUP: Final = "/apis/audit.tenure.sh/v1alpha1"
RBAC: Final = "rbac.authorization.k8s.io"
ANNA: Final = "anna"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A cluster with two teams, a Pod of each on one node, and a service that people ask."""

    plane: ControlPlane
    mine: str
    theirs: str
    port: int
    authority: Path
    ledger: str
    folder: Path

    def get(
        self, path: str, *, own: KeyPair | None = None, token: str = "", **headers: str
    ) -> tuple[int, str]:
        """Ask kube-apiserver, with a certificate or a token."""
        context = ssl.create_default_context(cafile=str(self.plane.ca_file))
        if own is not None:
            (self.folder / "own.pem").write_bytes(own.certificate + own.key)
            context.load_cert_chain(self.folder / "own.pem")
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            said["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(self.plane.url + path, headers=said)
        try:
            with urllib.request.urlopen(request, timeout=30, context=context) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read().decode()

    def who(
        self, namespace: str = "", *, own: KeyPair | None = None, token: str = "", **headers: str
    ) -> tuple[int, str]:
        """Ask who holds the node."""
        within = f"/namespaces/{namespace}" if namespace else ""
        path = f"{GROUP}{within}/answers/who?name={NODE}&output=json"
        return self.get(path, own=own, token=token, **headers)


def holders(text: str) -> set[str]:
    """Return the namespaces whose Pods an answer names."""
    return {one["namespace"] for one in json.loads(text)["holders"]}


@pytest.fixture
def answered(
    plane: ControlPlane,
    namespace: Callable[..., str],
    identities: Identities,
    tmp_path: Path,
) -> Iterator[Answered]:
    """Two teams on one node, and the aggregated API by a Service of type ExternalName."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    add_gpu_node(plane, NODE, gpus=2)
    mine, theirs = namespace(managed=False), namespace(managed=False)
    url, port = f"sqlite:///{tmp_path / 'live.db'}", free_port()
    made = tenure("ledger", "init", "--ledger", url, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    authority = identities.server / "ca.crt"
    things = registered(authority.read_bytes(), port)
    with extender(plane, url, identities, api=port) as served:
        with plane.scheduler(asking(plane, served, identities)):
            for team in (mine, theirs):
                wanted = pod("one", {"koordinator.sh/gpu": "100"}, schedulerName="tenure")
                assert plane.api().create(pods_in(team), wanted).ok
                eventually(partial(is_bound, plane, f"{pods_in(team)}/one"))
        apply(plane, [*things, grants(mine, "User", ANNA)])
        yield Answered(
            plane=plane,
            mine=mine,
            theirs=theirs,
            port=port,
            authority=authority,
            ledger=url,
            folder=tmp_path,
        )
        remove(plane, things)
    for team in (mine, theirs):
        remove_pods(plane, pods_in(team), ["one"])
    remove_node(plane, NODE)


def registered(authority: bytes, port: int) -> list[dict[str, Any]]:
    """Return the APIService of the manifests, over a Service that leads to this machine."""
    made = printed_scheduler(authority=authority)
    [thing] = [one for one in made if one["kind"] == "APIService"]
    thing["spec"]["service"]["port"] = port
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "tenure-api", "namespace": "tenure-system"},
        "spec": {
            "type": "ExternalName",
            "externalName": "localhost",
            "ports": [{"port": port}],
        },
    }
    return [service, thing]


def grants(namespace: str, kind: str, name: str) -> dict[str, Any]:
    """Return what lets somebody get the answers of a namespace."""
    subject = {"kind": kind, "name": name}
    subject |= {"namespace": namespace} if kind == "ServiceAccount" else {"apiGroup": RBAC}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": f"answers-{name}", "namespace": namespace},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "tenure-answers"},
        "subjects": [subject],
    }


def is_bound(plane: ControlPlane, path: str) -> bool:
    """Tell whether a Pod has a node."""
    return bool(plane.api().get(path).body["spec"].get("nodeName"))


def test_a_user_of_one_namespace_sees_that_namespace_alone(answered: Answered) -> None:
    """With a client certificate through kube-apiserver, and directly with a ServiceAccount's."""
    plane, mine, theirs = answered.plane, answered.mine, answered.theirs
    admin = plane.tokens[ADMIN]
    anna = client_leaf(plane.users, ANNA)
    eventually(lambda: answered.get(GROUP, token=admin)[0] == 200)
    _, groups = answered.get("/apis", token=admin)
    assert "audit.tenure.sh" in groups

    _, gauges = answered.get("/metrics", token=admin)
    alerted = 'aggregator_unavailable_apiservice{name="v1alpha1.audit.tenure.sh"} 0'
    assert alerted in gauges

    everybody = answered.who(token=admin)
    assert (everybody[0], holders(everybody[1])) == (200, {mine, theirs}), everybody
    status, text = answered.who(mine, own=anna)
    assert (status, holders(text)) == (200, {mine}), text
    assert theirs not in text
    assert answered.who(theirs, own=anna)[0] == 403
    assert answered.who(own=anna)[0] == 403

    forged = {"X_Remote_User": ADMIN, "X_Remote_Group": "system:masters"}
    assert answered.who(theirs, own=anna, **forged)[0] == 403
    status, text = answered.who(mine, token=admin, Impersonate_User=ANNA)
    assert (status, holders(text)) == (200, {mine})
    assert answered.who(theirs, token=admin, Impersonate_User=ANNA)[0] == 403

    over = f"{GROUP}/namespaces/{mine}/answers/who?name={NODE}&output=json&since=1h%20ago"
    status, text = answered.get(over, own=anna)
    assert (status, holders(text)) == (200, {mine}), text
    status, text = answered.get(f"{over}&until=2020-01-01", own=anna)
    assert (status, "nothing is recorded in this period" in text) == (400, True), text

    _by_the_command(answered, anna)
    _by_a_token(answered)


def _by_the_command(answered: Answered, anna: KeyPair) -> None:
    """Ask as people do, with a kubeconfig."""
    files = {"tls.crt": anna.certificate, "tls.key": anna.key}
    for name, content in files.items():
        (answered.folder / name).write_bytes(content)
    kubeconfig = answered.folder / "anna.kubeconfig"
    kubeconfig.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\n"
        f"clusters: [{{name: test, cluster: {{server: '{answered.plane.url}',"
        f" certificate-authority: '{answered.plane.ca_file}'}}}}]\n"
        "users: [{name: test, user: {client-certificate: tls.crt, client-key: tls.key}}]\n"
        "contexts: [{name: test, context: {cluster: test, user: test}}]\n"
    )
    wide = {"COLUMNS": "400"}  # at which the age of a holding breaks no line
    env = {"KUBECONFIG": str(kubeconfig), **wide}
    question = ("who", f"{answered.mine}/one")
    live = tenure(*question, "--live", "-n", answered.mine, cwd=answered.folder, env=env)
    of_file = tenure(*question, "--ledger", answered.ledger, cwd=answered.folder, env=wide)
    assert live.returncode == 0, live.stderr
    assert without_ages(live.stdout) == without_ages(of_file.stdout)
    refused = tenure(*question, "--live", cwd=answered.folder, env=env)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "forbidden" in refused.stderr
    assert "-n" in refused.stderr


def without_ages(table: str) -> list[list[str]]:
    """Return the cells of a table without for how long each line lasts by now."""
    return [line.split()[:-5] for line in table.splitlines()]


def _by_a_token(answered: Answered) -> None:
    """Ask directly, as over a port-forward, with the token of a ServiceAccount."""
    api, mine = answered.plane.api(), answered.mine
    accounts = f"/api/v1/namespaces/{mine}/serviceaccounts"
    assert api.create(accounts, {"metadata": {"name": "reader"}}).ok
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = api.create(f"{accounts}/reader/token", review)
    assert token.ok, token.message
    (answered.folder / "token").write_text(token.body["status"]["token"])
    direct = (
        *("--server", f"https://127.0.0.1:{answered.port}", "--server-name", API_NAME),
        *("--server-ca", answered.authority, "--token-file", answered.folder / "token"),
    )

    def ask(namespace: str) -> tuple[int, str, str]:
        one = ("who", NODE, *direct, "-n", namespace, "-o", "json")
        done = tenure(*one, cwd=answered.folder)
        return done.returncode, done.stdout, done.stderr

    code, _, words = ask(mine)
    assert (code, "forbidden" in words) == (2, True), words
    apply(answered.plane, [grants(mine, "ServiceAccount", "reader")])
    eventually(lambda: ask(mine)[0] == 0)
    assert holders(ask(mine)[1]) == {mine}
    assert ask(answered.theirs)[0] == 2


def test_a_standby_answers_too_and_discovery_stays_while_the_ledger_is_away(
    plane: ControlPlane, empty_postgres: PostgresStore, identities: Identities
) -> None:
    """Neither replica ends of it, and both answer again once the database lets them in."""
    copy, ports = empty_postgres.copy(), (free_port(), free_port())
    token = plane.tokens[ADMIN]
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    add_gpu_node(plane, NODE, gpus=2)
    with (
        extender(plane, copy.url, identities, replica="a", api=ports[0]) as first,
        extender(plane, copy.url, identities, replica="b", api=ports[1], leading=False) as second,
    ):

        def ask(port: int, path: str) -> int:
            context = ssl.create_default_context(cafile=str(identities.server / "ca.crt"))
            headers = {"Authorization": f"Bearer {token}"}
            url = f"https://127.0.0.1:{port}{GROUP}{path}"
            try:
                with urllib.request.urlopen(
                    urllib.request.Request(url, headers=headers), timeout=30, context=context
                ) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as refusal:
                with refusal:
                    return refusal.code

        def each(path: str) -> list[int]:
            return [ask(port, path) for port in ports]

        who = f"/answers/who?name={NODE}"
        eventually(lambda: each(who) == [200, 200])
        copy.server.run(f"ALTER DATABASE {copy.database} ALLOW_CONNECTIONS false")
        there = f"FROM pg_stat_activity WHERE datname = '{copy.database}'"
        copy.server.run(f"SELECT pg_terminate_backend(pid) {there}")
        eventually(lambda: each(who) == [503, 503])
        assert each("") == [200, 200]
        assert [one.process.poll() for one in (first, second)] == [None, None], second.words()
        copy.server.run(f"ALTER DATABASE {copy.database} ALLOW_CONNECTIONS true")
        eventually(lambda: each(who) == [200, 200])
    remove_node(plane, NODE)
    copy.server.run(f"DROP DATABASE {copy.database} WITH (FORCE)")


def test_all_that_the_manifests_print_is_taken_by_the_api_server(
    plane: ControlPlane, tmp_path: Path, identities: Identities
) -> None:
    """Server-side, with every field checked; and who is bound to a role has its rights alone."""
    authority = str(identities.server / "ca.crt")
    options = ["--image", "tenure:1", "--config-map", "settings", "--api-service"]
    told = tenure(
        *("manifests", "scheduler", "--kube-version", "v1.36.3", "--api-ca", authority),
        *options,
        cwd=tmp_path,
    )
    assert told.returncode == 0, told.stderr
    printed = list(yaml.safe_load_all(told.stdout))
    query = "dryRun=All&fieldManager=test&force=true&fieldValidation=Strict"
    for thing in printed:
        path = f"{collection_of(thing)}/{thing['metadata']['name']}?{query}"
        reply = plane.api().patch(path, thing, "application/apply-patch+yaml")
        assert reply.ok, (thing["kind"], reply.message)

    roles = [one for one in printed if one["metadata"]["name"] == "tenure-force-release"]
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "forces"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "tenure-force-release"},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": ANNA}],
    }
    apply(plane, [*roles, binding])

    def may(user: str, verb: str, resource: str) -> bool:
        attributes = {"verb": verb, "group": "audit.tenure.sh", "resource": resource}
        review = {"spec": {"user": user, "resourceAttributes": {**attributes, "namespace": "ml"}}}
        made = plane.api().create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(made.body["status"]["allowed"])

    eventually(lambda: may(ANNA, "force-release", "holdings"))
    assert not may(ANNA, "get", "answers")
    assert not may("bob", "force-release", "holdings")
    may_order = [may(ANNA, "create", f"holdings/{order}") for order in ("release", "clear")]
    assert may_order == [True, True], "kube-apiserver asks before it hands an order on"
    remove(plane, [*roles, binding])


def says(served: Served, words: str) -> bool:
    """Tell whether a service that runs has logged this."""
    assert served.process.poll() is None, served.words()
    return words in served.words()


def test_who_starts_while_the_api_server_is_away_waits_for_it(
    plane: ControlPlane, identities: Identities, tmp_path: Path
) -> None:
    """Then it goes on by itself; also where it may read nothing, as in a server's first seconds."""
    url = f"sqlite:///{tmp_path / 'live.db'}"
    assert tenure("ledger", "init", "--ledger", url, cwd=tmp_path).returncode == 0
    server = urlsplit(plane.url).port
    assert server is not None
    with relay_to(server) as link, ExitStack() as stack:
        away = stack.enter_context(ExitStack())
        away.enter_context(link.cut())
        reached = plane.kubeconfig(SCHEDULER_ACCOUNT, f"https://127.0.0.1:{link.port}")
        served = stack.enter_context(
            extender(plane, url, identities, kubeconfig=reached, ready=False)
        )
        eventually(lambda: says(served, "the API server does not answer: waiting"))
        eventually(lambda: served.probe("readyz").startswith(API_AWAY))
        away.close()
        served.wait_ready()
    forbidden = plane.kubeconfig(KUBELET)
    with extender(plane, url, identities, kubeconfig=forbidden, ready=False) as served:
        eventually(lambda: says(served, "status=403"))
        role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "tenure-scheduler"}
        user = {"apiGroup": RBAC, "kind": "User", "name": KUBELET}
        binding = {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "late"},
            "roleRef": role,
            "subjects": [user],
        }
        apply(plane, [binding])
        eventually(lambda: served.probe("readyz").startswith("WrongIdentity"))
        remove(plane, [binding])


def test_who_starts_without_its_ledger_answers_discovery_and_waits(
    plane: ControlPlane, identities: Identities
) -> None:
    """Or an API server that finds this replica deletes no namespace; then it goes on by itself."""
    with own_server() as own:
        store = PostgresStore(server=own.server, database=own.server.new_database())
        store.open("create").close()
        own.stop()
        port = free_port()
        with extender(plane, store.url, identities, api=port, ready=False) as served:
            context = ssl.create_default_context(cafile=str(identities.server / "ca.crt"))
            context.check_hostname = False

            def asked(path: str) -> int:
                try:
                    url = f"https://127.0.0.1:{port}{path}"
                    with urllib.request.urlopen(url, timeout=5, context=context) as answer:
                        return int(answer.status)
                except urllib.error.HTTPError as refusal:
                    with refusal:
                        return refusal.code
                except OSError:
                    return 0

            eventually(lambda: "does not answer: waiting" in served.words())
            assert [asked(path) for path in ("/apis", GROUP, "/openapi/v3")] == [200] * 3
            assert asked(f"{GROUP}/answers/who") == 503
            assert served.probe("readyz").strip() == AWAY
            assert served.probe("livez") == "ok\n"
            own.start()
            served.wait_ready()
            assert asked(f"{GROUP}/answers/who") == 401
