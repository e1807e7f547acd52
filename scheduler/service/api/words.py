"""The names of the group by which the cluster knows our answers, in paths and in roles."""

from typing import Final

GROUP: Final = "audit.tenure.sh"
VERSION: Final = "v1alpha1"
RESOURCE: Final = "answers"
"""What roles name: `get answers.audit.tenure.sh`, and by `resourceNames` single questions."""
NO_HEADER: Final = "Tenure-Answer"
NO: Final = "no"
"""A command that asks ends as one whose answer is no."""
ROOT: Final = f"/apis/{GROUP}/{VERSION}"
REFUSALS: Final = "/webhook/v1/refusals"
"""Where webhooks tell whom they refused."""
REFUSALS_MAX: Final = 200
"""Refusals of one message."""
REFUSALS_BYTES_MAX: Final = 512 << 10
"""Of one message: whoever is refused chooses how long a name is, and nobody takes 1 MiB."""
WEBHOOK_ACTOR: Final = "webhook"
"""Whose doing the refusals are that webhooks tell of: of objects that never were."""
HOLDINGS: Final = "holdings"
FORCE: Final = "force-release"
"""The verb that a role must name: `force-release holdings.audit.tenure.sh`."""
AGENT_ACCOUNT: Final = "tenure-agent"
"""The ServiceAccount of nodes' agents, in Tenure's namespace."""
CPUS_ACCOUNT: Final = "tenure-cpus"
"""The ServiceAccount of what binds CPUs on nodes, likewise."""
WEBHOOK_ACCOUNT: Final = "tenure-webhook"
"""The ServiceAccount of webhooks, likewise."""


def user_of(account: str, namespace: str = "tenure-system") -> str:
    """Return the user that a ServiceAccount is."""
    return f"system:serviceaccount:{namespace}:{account}"
