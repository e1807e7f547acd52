"""Plugins of NRI that are not ours: one that looks, or one that sets CPUs too."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from agent.cpus import ttrpc
from agent.cpus.nri_messages import RUNTIME_SERVICE, message, register, synchronized

Answer = Callable[[str, bytes], bytes]
SECONDS = 60.0


@contextmanager
def other_plugin(path: Path, index: str, events: int, answer: Answer) -> Iterator[None]:
    """
    Be a plugin until the block ends.

    Args:
        events: what it is called on, as NRI's bits.
        answer: is given method and payload while the runtime waits.
    """
    ready = Event()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        named = register("other", index)
        connection.sendall(ttrpc.request(RUNTIME_SERVICE, "RegisterPlugin", named, SECONDS))
        arguments = (connection, events, answer, ready)
        thread = Thread(target=_serve, args=arguments, daemon=True)
        thread.start()
        try:
            assert ready.wait(SECONDS), "the runtime does not take it"
            yield
        finally:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join(SECONDS)


def _serve(connection: socket.socket, events: int, answer: Answer, ready: Event) -> None:
    incoming = ttrpc.Incoming()
    while received := connection.recv(65_536):
        for one in incoming.feed(received):
            if one.connection == ttrpc.RUNTIME:
                continue
            method, payload = ttrpc.asked_in(one)
            if method == "Configure":
                said = message("ConfigureResponse")(events=events).SerializeToString()
            elif method == "Synchronize":
                said = synchronized(payload)
            else:
                said = answer(method, payload)
            connection.sendall(ttrpc.response(one, said))
            if method == "Synchronize":
                ready.set()
