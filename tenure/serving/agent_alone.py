"""`tenure serve agent` once its command line is read: the same process, without a command line."""

from __future__ import annotations

import os
import pickle
import sys
from typing import Final, NoReturn

from tenure.exits import ended
from tenure.serving.agent import AgentOptions, serve_agent
from tenure.serving.logs import set_up_logs
from tenure.serving.run import run_service

MODULE: Final = "tenure.serving.agent_alone"


def go_on(options: AgentOptions, *, debug: bool) -> NoReturn:
    """
    Serve, as a program of our own in this process: on every node that is 13 MiB less.

    The options, read and checked, come along in memory that nobody else has.
    """
    told = os.memfd_create("tenure-agent", 0)  # kept open by what comes
    with os.fdopen(told, "wb", closefd=False) as file:
        pickle.dump((options, debug), file)
    os.lseek(told, 0, os.SEEK_SET)
    command = [sys.executable, "-P", "-m", MODULE, str(told)]
    os.execv(sys.executable, command)  # noqa: S606 - ourselves


def _serve() -> None:
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        options, debug = pickle.load(file)  # noqa: S301 - what we wrote ourselves
    set_up_logs(debug=debug)
    run_service(serve_agent(options))


if __name__ == "__main__":
    sys.exit(ended(_serve))
