"""
What we take of kubernetes-asyncio: how credentials are found and kept fresh, and its connections.

Importing any of its modules the usual way loads a class for every kind of the API: 850 modules,
36 MB and half a second, none of which is called here. Its two packages are entered without that.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

_LIBRARY = "kubernetes_asyncio"


def _entered(name: str) -> ModuleType:
    """Return a package whose modules can be imported, though its own `__init__` has not run."""
    spec = find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    package = ModuleType(name, "Entered without what it imports by itself.")
    package.__spec__, package.__path__ = spec, list(spec.submodule_search_locations or ())
    return sys.modules.setdefault(name, package)


if _LIBRARY not in sys.modules:  # whoever has loaded all of it goes on with that
    _entered(_LIBRARY)
    _client = _entered(f"{_LIBRARY}.client")
    _client.Configuration = import_module(f"{_LIBRARY}.client.configuration").Configuration  # type: ignore[attr-defined] # its `config` imports it from there
    _client.ApiClient = object  # type: ignore[attr-defined] # likewise; nothing here makes one

from kubernetes_asyncio.client.configuration import Configuration  # noqa: E402 - behind the above
from kubernetes_asyncio.client.exceptions import OpenApiException  # noqa: E402 - as above
from kubernetes_asyncio.client.rest import RESTClientObject  # noqa: E402 - as above
from kubernetes_asyncio.config.config_exception import ConfigException  # noqa: E402 - as above
from kubernetes_asyncio.config.incluster_config import load_incluster_config  # noqa: E402 - as above
from kubernetes_asyncio.config.kube_config import load_kube_config  # noqa: E402 - as above

__all__ = [
    "ConfigException",
    "Configuration",
    "OpenApiException",
    "RESTClientObject",
    "load_incluster_config",
    "load_kube_config",
]
