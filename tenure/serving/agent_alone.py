"""`tenure serve agent` and `cpus` once their command line is read; see `alone`."""

from __future__ import annotations

import sys

from tenure.exits import ended
from tenure.serving.alone import told
from tenure.serving.cpus_options import CpusOptions
from tenure.serving.logs import set_up_logs
from tenure.serving.run import run_service


def _serve() -> None:
    options = told()
    set_up_logs(debug=options.debug)
    if isinstance(options, CpusOptions):
        from tenure.serving.cpus import serve_cpus

        run_service(serve_cpus(options))
    else:
        from tenure.serving.agent import serve_agent

        run_service(serve_agent(options))


if __name__ == "__main__":
    sys.exit(ended(_serve))
