"""A gRPC service over a Unix socket that answers with bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

Answer = Callable[[bytes, Any], bytes]


@contextmanager
def serving(socket: Path, service: str, calls: Mapping[str, Answer]) -> Iterator[None]:
    """Answer calls over a socket until the block ends."""
    handlers: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(call, bytes, bytes)
        for name, call in calls.items()
    }
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        handler = grpc.method_handlers_generic_handler(service, handlers)
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        try:
            yield
        finally:
            server.stop(None).wait()
