"""The options of `tenure serve cpus`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tenure.serving.agent_options import NodeOptions
from tenure.serving.options import Option


@dataclass(frozen=True, slots=True, kw_only=True)
class CpusOptions(NodeOptions):
    """How what binds CPUs is started."""

    kubepods: Annotated[
        Path | None,
        Option(
            "Kubelet's cgroup of all Pods: of cgroup v2, or of v1's cpuset. Default: it is looked"
            " for below /sys/fs/cgroup of --host."
        ),
    ] = None
    kubepods_cpu: Annotated[
        Path | None, Option("With --kubepods, of v1: the same cgroup in the hierarchy of cpu.")
    ] = None
    topology: Annotated[
        str,
        Option(
            "Who tells the policies of kubelet's managers: itself (configz), or the FILE of its"
            " configuration.",
            metavar="configz|FILE",
        ),
    ] = "configz"
    nri: Annotated[
        Path | None,
        Option(
            "The runtime's socket of NRI, such as /var/run/nri/nri.sock: containers are bound as"
            " they are made. Default: soon after."
        ),
    ] = None
    look_seconds: Annotated[
        float, Option("Seconds between two looks at the Node's label.", least=0.1)
    ] = 30.0
    best_effort_threshold: Annotated[
        int,
        Option(
            "Percent of the node's CPUs that are used in all before best effort Pods get fewer of"
            " them. 0: they have all that nobody has to himself alone.",
            least=0,
        ),
    ] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions(CpusOptions):
    """How CPUs are given back."""

    dry_run: Annotated[bool, Option("Write nothing; only plan.", variable="")] = False
