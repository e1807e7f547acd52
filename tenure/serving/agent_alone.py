"""`tenure serve agent` once its command line is read; see `alone`."""

from __future__ import annotations

import sys

from tenure.exits import ended
from tenure.serving.agent import serve_agent
from tenure.serving.alone import told
from tenure.serving.logs import set_up_logs
from tenure.serving.run import run_service


def _serve() -> None:
    options = told()
    set_up_logs(debug=options.debug)
    run_service(serve_agent(options))


if __name__ == "__main__":
    sys.exit(ended(_serve))
