"""`tenure serve ...`: the services, each a process that runs until it is told to stop."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import MISSING
from inspect import Parameter
from pathlib import Path
from typing import Annotated, get_args, get_origin

import typer

from tenure.commands import Commands, with_parameters
from tenure.serving.agent_options import AgentOptions
from tenure.serving.cpus_options import CpusOptions
from tenure.serving.options import Declared, Options, declared, read
from tenure.serving.scheduling.options import SchedulerOptions
from tenure.serving.webhook_options import WebhookOptions

SERVE = typer.Typer(
    cls=Commands, name="serve", help="Run one of the services.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    """Add the commands to `tenure`."""
    SERVE.command("webhook")(serve_command(WebhookOptions, webhook))
    SERVE.command("scheduler")(serve_command(SchedulerOptions, scheduler))
    SERVE.command("agent")(serve_command(AgentOptions, agent))
    SERVE.command("cpus")(serve_command(CpusOptions, cpus))
    SERVE.command("inside", hidden=True)(inside)
    app.add_typer(SERVE)


def serve_command(options: type[Options], serve: Callable[[Options], None]) -> Callable[..., None]:
    """Return a command with the options of a process."""
    parameters = map(_parameter, declared(options))
    return with_parameters(parameters, lambda **given: serve(read(options, given)), serve)


def _parameter(each: Declared) -> Parameter:
    """Return an option as typer reads it: text where we make a value of it, a list of several."""
    option, default = each.option, None if each.is_made else each.default()
    kind = each.kind if option.read is None else str
    if get_origin(kind) is tuple:
        kind, default = list[get_args(kind)[0]], None  # type: ignore[misc]  # known when it runs
    elif option.read is not None and default not in (MISSING, None):
        default = str(default)
    asked = typer.Option(
        each.flag,
        envvar=each.variable or None,
        help=option.help,
        metavar=option.metavar,
        min=option.least,
    )
    return Parameter(
        each.field.name,
        Parameter.KEYWORD_ONLY,
        annotation=Annotated[kind if default is not None else kind | None, asked],
        default=Parameter.empty if default is MISSING else default,
    )


def webhook(options: WebhookOptions) -> None:
    """
    Serve admission to kube-apiserver, with certificates that rotate themselves.

    Every option can be given by the environment, as the help says; the command line counts first.

    Example: tenure serve webhook --config admission.yaml
    """
    from tenure.extras import needs

    with needs("service"):
        from tenure.serving.logs import set_up_logs
        from tenure.serving.run import run_service
        from tenure.serving.webhook import serve_webhook

    set_up_logs(debug=options.debug)
    run_service(serve_webhook(options))


def scheduler(options: SchedulerOptions) -> None:
    """
    Serve as the extender of a kube-scheduler: decide, record in the ledger, bind.

    Of several replicas one leads, the others stand by; `tenure manifests scheduler` prints them,
    and the kube-scheduler that asks.

    Example: tenure serve scheduler --certificates tls --proof-key pods.key --ledger-key my.key
    """
    from tenure.serving.alone import go_on

    go_on("tenure.serving.scheduler_alone", options)


def agent(options: AgentOptions) -> None:
    """
    Serve on a node: show each container the cards that it holds, by CDI, and report the machine.

    Example: tenure serve agent --service https://tenure-api.tenure-system:8444 --node n-17 \
--mode plugin --cards /var/run/cdi/nvidia.yaml
    """
    from tenure.extras import needs
    from tenure.serving.alone import go_on

    with needs("agent,service"):
        import tenure.serving.agent  # noqa: F401 - what comes next needs it

    go_on("tenure.serving.agent_alone", options)


def cpus(options: CpusOptions) -> None:
    """
    Bind the containers of a node to their CPUs, where its label tenure.sh/bind-cpus says "true".

    Without the label it writes nothing, and /readyz says what it would write.

    Example: tenure serve cpus --service https://tenure-api.tenure-system:8444
    """
    from tenure.extras import needs
    from tenure.serving.alone import go_on

    with needs("agent,service"):
        import tenure.serving.cpus  # noqa: F401 - what comes next needs it

    go_on("tenure.serving.agent_alone", options)


def inside() -> None:
    """
    Say what this container sees of the node's cards: the agent's probe Pod runs it.

    Example: tenure serve inside
    """
    from agent.inside import TOLD, say

    say(os.environ, devices=Path("/dev"), told=TOLD)
