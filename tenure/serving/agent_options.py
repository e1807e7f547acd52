"""The options of `tenure serve agent`, and those of every process of a node."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tenure.serving.options import DEBUG, PROBES, PROBES_ADDRESS, Address, Option, if_given

if TYPE_CHECKING:
    from agent.decide.isolation import Provider


class AgentMode(StrEnum):
    """The words of the setting `slotMode` (docs/admission.md)."""

    PLUGIN = "plugin"
    """By slots of a device plugin, and CDI."""
    ENV = "env"
    """By their environment, which admission writes: the agent answers kubelet nothing."""
    GPUSHARE = "gpushare"
    """As the GPU share proposal's device plugin does."""


class ShareUnit(StrEnum):
    """What `aliyun.com/gpu-mem` counts on this node: the setting `gpushare.unit`."""

    MIB = "MiB"
    GIB = "GiB"


def _provider(text: str) -> Provider:
    from agent.decide.isolation import Provider  # with what a command line does not need

    return Provider.named(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What each process of a node is given: whom it asks, where the machine is, who asks it."""

    service: Annotated[
        str,
        Option("The scheduler's API, which tells the holdings of this node.", metavar="URL"),
    ] = ""
    token: Annotated[Path, Option("Our token, as kubelet mounts it.")] = Path(
        "/var/run/secrets/kubernetes.io/serviceaccount/token"
    )
    ca: Annotated[Path, Option("With --service: the authority of its listener.")] = Path(
        "/etc/tenure/ca.crt"
    )
    kubelet: Annotated[
        str, Option("Kubelet's listener, which tells the Pods of this node.", metavar="URL")
    ] = "https://127.0.0.1:10250"
    kubelet_ca: Annotated[Path, Option("The authority of kubelet's listener.")] = Path(
        "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    )
    pod_resources: Annotated[
        Path, Option("Kubelet's socket that tells who was given what, and what it would give.")
    ] = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    proof_keys: Annotated[
        Path,
        Option("With --service: folder of public keys, *.vkey, that sign what a node believes."),
    ] = Path("/etc/tenure/proof-keys")
    kubeconfig: Annotated[
        Path | None, Option("Of a user of the cluster. Default: that of our Pod.")
    ] = None
    host: Annotated[Path, Option("Where the machine's own / is.")] = Path("/")
    state: Annotated[Path, Option("Folder of what outlives the process.")] = Path("/var/lib/tenure")
    probes: Annotated[Address, PROBES] = PROBES_ADDRESS
    debug: Annotated[bool, DEBUG] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions(NodeOptions):
    """How the agent is started; `holdings` None = the service has them."""

    mode: Annotated[
        AgentMode, Option("How containers are shown their cards: the service's setting slotMode.")
    ] = AgentMode.ENV
    gpushare_unit: Annotated[
        ShareUnit, Option("In the mode gpushare: the setting gpushare.unit.")
    ] = ShareUnit.MIB
    cards: Annotated[
        tuple[Path, ...],
        Option("CDI specification of the node's cards by their ids; may be given again."),
    ] = ()
    holdings: Annotated[
        Path | None,
        Option("Instead of --service: file with who holds what on this node, as JSON."),
    ] = None
    plugins: Annotated[Path, Option("Kubelet's folder of device plugins.")] = Path(
        "/var/lib/kubelet/device-plugins"
    )
    cdi: Annotated[Path, Option("Folder of CDI specifications that the runtime reads.")] = Path(
        "/var/run/cdi"
    )
    runtime: Annotated[
        Path | None,
        Option(
            "The container runtime's, asked whether it has CDI and what it runs; empty = it"
            " has, and no Pod is called gone.",
            metavar="SOCKET",
            read=if_given(Path),
        ),
    ] = Path("/run/containerd/containerd.sock")
    slots: Annotated[
        int, Option("How many containers with devices may be on the node at once.", least=1)
    ] = 512
    ledger_key: Annotated[
        tuple[str, ...],
        Option("Verifier key, or its file, of the ledger's checkpoints; may be given again."),
    ] = ()
    isolation: Annotated[
        str,
        Option("What keeps containers to their parts of cards: none or hami-core.", read=_provider),
    ] = "none"
    isolation_library: Annotated[
        str,
        Option("With --isolation: the node's path of its library, with a folder locks beside it."),
    ] = "/usr/local/vgpu/libvgpu.so"
    probe_image: Annotated[
        str,
        Option(
            "In the mode env, with --node: has `tenure`, for the Pod that proves the mode.",
            metavar="IMAGE",
        ),
    ] = ""
    probe_namespace: Annotated[str, Option("Likewise: where that Pod may be made.")] = (
        "tenure-system"
    )
    probe_runtime_class: Annotated[
        str,
        Option("Likewise: the RuntimeClass of Pods that hold cards. Default: they name none."),
    ] = ""
    offers: Annotated[
        tuple[str, ...],
        Option(
            "With --node: another way to ask for cards whose amounts the Node offers; may be"
            " given again.",
            metavar="DIALECT",
        ),
    ] = ()
    node: Annotated[
        str,
        Option(
            "Name of this machine's Node: report its devices. Default, without --service"
            " alone: somebody else does."
        ),
    ] = ""
    kubelet_root: Annotated[
        Path | None,
        Option(
            "With --service and --node: kubelet's own folder; its record of claims says which"
            " have ended here. Default: claims end without this node's word."
        ),
    ] = None
    machine: Annotated[
        Path | None,
        Option("With --node: describes the machine. Default: driver and kernel are asked."),
    ] = None
    declared: Annotated[Path | None, Option("With --node: lists devices beside GPUs and NICs.")] = (
        None
    )
    bandwidth: Annotated[
        Path | None, Option("With --node: what p2pBandwidthLatencyTest or nccl-tests printed.")
    ] = None
    topology: Annotated[
        str,
        Option(
            "With --node: report its CPUs in a NodeResourceTopology; kubelet's own policies are"
            " asked for (configz), or in the FILE of its configuration.",
            metavar="configz|FILE",
        ),
    ] = ""
    report_seconds: Annotated[
        float, Option("With --node: seconds between two reports.", least=0.1)
    ] = 30.0

    @property
    def provider(self) -> Provider:
        """Return what keeps containers to their parts of cards."""
        return _provider(self.isolation)

    @property
    def has_slots(self) -> bool:
        """Tell whether containers are known by slots, and shown their cards by CDI."""
        in_mib = self.mode is AgentMode.GPUSHARE and self.gpushare_unit is ShareUnit.MIB
        return in_mib or self.mode is AgentMode.PLUGIN
