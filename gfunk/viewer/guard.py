"""Keeps other sites out: a page elsewhere may make a browser call us, by our address or by a name made to lead here."""

import json
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "::1", "localhost")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Refuses requests that name another host or come from another site, and says on every answer what a page may do."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str] = LOOPBACK, any_address: bool = False):
        self.app, self.hosts, self.any_address = app, tuple(hosts), any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send):
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message):
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        reason = self.refusal(scope["method"], Headers(scope=scope))
        app = self.app if reason is None else refusal(reason, 403)
        await app(scope, receive, send_guarded)

    def refusal(self, method: str, headers: Headers) -> str | None:
        """Why a request is turned away, if it is."""
        host = headers.get("host", "")
        if not is_ours(host, self.hosts, self.any_address):
            return "this server answers to its own address alone"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "requests from other sites are refused"
        # The port in Host may be that of a tunnel: what counts is that page and request name the same one.
        origin = headers.get("origin")
        is_own = origin is not None and urlsplit(origin).netloc == host
        if not is_own and (origin is not None or method not in ("GET", "HEAD")):
            return "requests from other sites are refused"
        return None


def is_ours(host: str, names: Sequence[str], any_address: bool) -> bool:
    """Whether a Host header means us. Names can be made to lead here, so only ours are answered to; addresses can't."""
    with suppress(ValueError):
        name = urlsplit(f"//{host}").hostname
        if name in names:
            return True
        if any_address and name is not None:
            ip_address(name)
            return True
    return False


def refusal(reason: str, status: int) -> Response:
    return Response(json.dumps({"error": reason}), status, media_type="application/json")
