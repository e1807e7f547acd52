"""A question to a service that runs: through kube-apiserver as `kubectl` does, or directly."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import aiohttp

from certs.ports import ApiError, api_path
from ledger.domain.errors import InputError
from scheduler.service.api.words import GROUP, HOLDINGS, NO, NO_HEADER, RESOURCE, VERSION
from tenure.asking import Answer
from tenure.exits import with_next
from tenure.kube.objects import ANSWER_BYTES_MAX, TextAnswer, connected, text_answer

ANSWER_SECONDS: Final = 60.0
NOTE: Final = re.compile(r'^299 \S+ "((?:[^"\\]|\\.)*)"$')
"""A note beside an answer is a warning of HTTP, which kubectl shows too."""
_OK: Final = 200
_CONFLICT: Final = 409
_STEPS: Final = {
    401: "show who you are: a kubeconfig, or --token-file of a token that the cluster knows",
    403: "ask for one namespace by -n, or let somebody grant you `get answers.audit.tenure.sh`",
    404: "is the aggregated API installed? see `tenure manifests scheduler --api`",
}
_RELEASE_STEPS: Final = _STEPS | {
    403: "let somebody grant you `force-release holdings.audit.tenure.sh` in that namespace",
}
_CLEAR_STEPS: Final = _STEPS | {
    403: "let somebody grant you `force-release holdings.audit.tenure.sh` in all namespaces",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """
    A service to ask.

    Attributes:
        url: where it is; empty = behind kube-apiserver, by the kubeconfig of `kubectl`.
        token_file: bearer token for a `url`.
        authority_file: whose leaf the service at `url` shows; None = one that this machine trusts.
        name: the DNS name in that leaf, where it is another than that of the URL.
        namespace: whose lines are asked for; empty = everybody's.
    """

    url: str = ""
    token_file: Path | None = None
    authority_file: Path | None = None
    name: str = ""
    namespace: str = ""

    def ask(self, question: str, params: list[tuple[str, str]]) -> Answer:
        """Return the answer and its notes. Raises InputError: not reached, or it refuses."""
        within = ("namespaces", self.namespace) if self.namespace else ()
        query = f"?{urlencode(params)}" if params else ""
        found = self._called((*within, RESOURCE, question), query=query)
        if found.status != _OK:
            raise self._refused(found, _STEPS)
        answer = Answer(is_no=found.headers.get(NO_HEADER) == NO)
        answer.out.write(found.text)
        answer.notes = [note for one in found.headers.getall("Warning", ()) for note in _note(one)]
        return answer

    def release(
        self, namespace: str, name: str, *, uid: str, reason: str, dry_run: bool
    ) -> tuple[list[str], list[str]]:
        """
        Order that what a Pod or a claim holds is released though its node is silent.

        Returns:
            UIDs of those that were released, and of claims that are as soon as their controller
            takes their allocation away; none where nothing waits.

        Raises:
            InputError: it can't be ordered, or it refuses; in its own words.
        """
        order = {"reason": reason, "uid": uid} | ({"dryRun": True} if dry_run else {})
        found = self._called(("namespaces", namespace, HOLDINGS, name, "release"), order)
        if found.status == _CONFLICT:
            return [], []
        if found.status != _OK:
            raise self._refused(found, _RELEASE_STEPS)
        said = json.loads(found.text)
        return said["released"], said.get("let_go", [])

    def clear(self, node: str, *, reason: str, dry_run: bool) -> list[dict[str, str]]:
        """
        Order that what lost Pods hold of a node ends.

        Returns:
            Who ended: `node`, `node_uid`, `pod` and `pod_uid` of each.

        Raises:
            InputError: it can't be ordered, or it refuses; in its own words.
        """
        order = {"reason": reason} | ({"dryRun": True} if dry_run else {})
        found = self._called((HOLDINGS, node, "clear"), order)
        if found.status != _OK:
            raise self._refused(found, _CLEAR_STEPS)
        ended: list[dict[str, str]] = json.loads(found.text)["ended"]
        return ended

    def _called(
        self,
        words: Sequence[str],
        order: Mapping[str, str | bool] | None = None,
        *,
        query: str = "",
    ) -> TextAnswer:
        act = self._directly if self.url else _by_kubeconfig
        try:
            return asyncio.run(act(f"{api_path(f'{GROUP}/{VERSION}', *words)}{query}", order))
        except ApiError as error:
            step = "is it running, and can it be reached from here?"
            raise with_next(InputError(str(error)), step) from error

    def _refused(self, found: TextAnswer, steps: Mapping[int, str]) -> InputError:
        place = self.url or "kube-apiserver"
        refused = InputError(f"{found.message} (status {found.status})", place=place)
        return with_next(refused, steps.get(found.status, "ask otherwise, or again"))

    async def _directly(self, path: str, order: Mapping[str, str | bool] | None) -> TextAnswer:
        headers = {"Authorization": f"Bearer {_token(self.token_file)}"}
        context = _context(self.authority_file)
        try:
            async with (
                asyncio.timeout(ANSWER_SECONDS),
                aiohttp.ClientSession() as session,
                session.request(
                    "GET" if order is None else "POST",
                    self.url.rstrip("/") + path,
                    headers=headers,
                    json=order,
                    ssl=context,
                    server_hostname=self.name or None,
                    allow_redirects=False,  # the token is for nobody else
                ) as answer,
            ):
                raw = await answer.content.read(ANSWER_BYTES_MAX)
                return text_answer(answer.status, raw, answer.headers)
        except TimeoutError as error:
            fact = f"the service did not answer: url={self.url}, seconds={ANSWER_SECONDS:g}"
            raise ApiError(fact) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ApiError(f"the service can't be asked: url={self.url}: {error}") from error


async def _by_kubeconfig(path: str, order: Mapping[str, str | bool] | None) -> TextAnswer:
    async with connected(timeout_seconds=ANSWER_SECONDS) as api:
        return await api.text(path, order)


def _note(header: str) -> list[str]:
    found = NOTE.match(header)
    return [] if found is None else [re.sub(r"\\(.)", r"\1", found[1])]


def _token(path: Path | None) -> str:
    if path is None:
        error = InputError("who asks is not said", field="--token-file")
        raise with_next(error, "kubectl create token NAME > FILE, then give --token-file FILE")
    return _read(path, "--token-file").strip()


def _context(authority: Path | None) -> ssl.SSLContext:
    if authority is None:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cadata=_read(authority, "--server-ca"))
    except (ssl.SSLError, ValueError) as error:
        fact = f"no certificate can be read: {error}"
        raise InputError(fact, place=str(authority), field="--server-ca") from error


def _read(path: Path, option: str) -> str:
    try:
        return path.read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"can't read it: {error}", place=str(path), field=option) from error
