"""`tenure serve scheduler` once its command line is read; see `alone`."""

from __future__ import annotations

import sys

from tenure.exits import ended
from tenure.extras import needs
from tenure.serving.alone import told
from tenure.serving.memory import look_seldom


def _serve() -> None:
    look_seldom()  # what is imported stays too
    options = told()
    with needs("service"):
        from tenure.serving.logs import set_up_logs
        from tenure.serving.run import run_service
        from tenure.serving.scheduler import serve_scheduler

    set_up_logs(debug=options.debug)
    run_service(serve_scheduler(options))


if __name__ == "__main__":
    sys.exit(ended(_serve))
