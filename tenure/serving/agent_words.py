"""What processes of a node follow: the service's word of what is held here, and kubelet's Pods."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import aiohttp
from prometheus_client import CollectorRegistry

from agent.decide.believing import Believing, OwnNode
from agent.discover.host_files import HostFiles
from agent.discover.sysfs import read_identity
from agent.https import Authority, Caller
from agent.kubelet.watch import KubeletPods, PodsHere
from agent.plugin.held import HeldHere
from agent.service.keeping import CopyFile, Keeper, Words
from agent.service.link import ServiceLink
from agent.service.own_node import ProofKeys, node_of_token, pod_of_token
from ledger.domain.errors import InputError
from tenure.exits import with_next
from tenure.serving.agent_options import NodeOptions
from tenure.serving.background import Tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """
    What is known of this node's holdings.

    Attributes:
        own_pod: name and UID of the Pod that we run in; empty = in none.
    """

    held: HeldHere
    believing: Believing
    link: ServiceLink
    pods: PodsHere
    words: Words
    own_pod: tuple[str, str]
    node: str


def words_of(
    options: NodeOptions,
    session: aiohttp.ClientSession,
    kubelet: KubeletPods,
    registry: CollectorRegistry,
    tasks: Tasks,
    *,
    mode: str = "",
) -> Told:
    """
    Return what containers hold, with the tasks that keep it known.

    Raises:
        InputError: our token says no node, or the folder of what outlives us is missing.
    """
    if not options.state.is_dir():
        missing = InputError(f"no such folder: {options.state}", field="--state")
        raise with_next(missing, "mount a folder of the node's own there")
    name, uid = node_of_token(options.token)
    machine = read_identity(HostFiles(root=options.host))
    own = OwnNode(name=name, uid=uid, machine=(machine.system_uuid, machine.machine_id))
    believing = Believing(own, ProofKeys(options.proof_keys).check)
    keeper = Keeper(file=CopyFile(options.state), boot_id=machine.boot_id)
    begun = keeper.begin(believing)
    known, age = (None, None) if begun is None else begun
    service = Caller(
        session=session,
        url=options.service.rstrip("/"),
        authority=Authority(options.ca),
        token=options.token,
    )
    link = ServiceLink(
        service, clock=time.monotonic, draw=random.random, known=known, age_seconds=age
    )
    link.mode = mode
    keeper.keep(link)
    pods = PodsHere(kubelet)
    held = HeldHere(link, pods, believing)
    words = Words(link=link, keeper=keeper, pods=pods, held=held)
    registry.register(words)
    tasks += [link.run(), keeper.run(link), pods.run()]
    own_pod = pod_of_token(options.token)
    return Told(
        believing=believing,
        held=held,
        link=link,
        pods=pods,
        words=words,
        own_pod=own_pod,
        node=name,
    )


def kubelet_of(options: NodeOptions, session: aiohttp.ClientSession, node: str) -> KubeletPods:
    """Return kubelet's listener, whose certificate has to be the node's."""
    caller = Caller(
        session=session,
        url=options.kubelet.rstrip("/"),
        authority=Authority(options.kubelet_ca),
        token=options.token,
        server_name=node or None,
    )
    return KubeletPods(caller=caller)


def expect_https(options: NodeOptions) -> None:
    """Refuse, by InputError, to send a token by anything else."""
    for option, url in (("--service", options.service), ("--kubelet", options.kubelet)):
        if url and not url.startswith("https://"):
            raise InputError(f"a token is sent by https alone: value={url!r}", field=option)
