"""Servers that misbehave: a proxy that loses answers, and a store that ignores conditions."""

from __future__ import annotations

import hashlib
import http.client
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_HOP = {"connection", "transfer-encoding", "content-length", "server", "date"}
_HEAD = {"HEAD"}


class _Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Requests are no news."""

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.command not in _HEAD or "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command not in _HEAD:
            self.wfile.write(body)


@contextmanager
def _serving(handler: type[_Quiet], certificate: Path | None = None) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        scheme = "https" if certificate else "http"
        yield f"{scheme}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Proxy:
    """A proxy in front of an S3 server. ``faults`` are used up one a matching request, in order:
    ``lost`` forwards the request and drops the answer, ``flipped`` damages the answer's last
    byte and its checksum, a number answers that status instead of forwarding."""

    endpoint: str = ""
    matches: Callable[[str, str], bool] = lambda method, path: method in ("PUT", "POST")
    faults: list[str | int] = field(default_factory=list)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)


@contextmanager
def proxy(upstream: str) -> Iterator[Proxy]:
    """Run a :class:`Proxy` to the server at ``upstream``."""
    state = Proxy()
    target = urlsplit(upstream).netloc

    class Handler(_Quiet):
        def forward(self) -> None:
            body = self.body()
            state.requests.append((self.command, self.path, dict(self.headers.items())))
            fault = (
                state.faults.pop(0)
                if state.faults and state.matches(self.command, self.path)
                else None
            )
            if isinstance(fault, int):
                return self.answer(fault, {}, f"<Error><Code>E{fault}</Code></Error>".encode())
            connection = http.client.HTTPConnection(target, timeout=30)
            try:
                connection.putrequest(
                    self.command, self.path, skip_host=True, skip_accept_encoding=True
                )
                for name, value in self.headers.items():
                    if name.lower() != "expect":
                        connection.putheader(name, value)
                connection.endheaders(body)
                response = connection.getresponse()
                data = response.read()
                headers = {n: v for n, v in response.getheaders() if n.lower() not in _HOP}
                if self.command in _HEAD:
                    headers["Content-Length"] = response.getheader("Content-Length") or "0"
                status = response.status
            finally:
                connection.close()
            if fault == "lost":
                self.close_connection = True
                return None
            if fault == "flipped":
                data = data[:-1] + bytes([data[-1] ^ 1])
                headers = {n: v for n, v in headers.items() if "checksum" not in n.lower()}
            return self.answer(status, headers, data)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward  # noqa: N815

    with _serving(Handler) as endpoint:
        state.endpoint = endpoint
        yield state


@contextmanager
def stand_in(honours: frozenset[str], certificate: Path | None = None) -> Iterator[str]:
    """A small S3 server that checks no credentials and honours only the named conditions:
    ``none-match``, ``match`` (on an object that is there), ``match-absent``."""
    objects: dict[str, bytes] = {}
    lock = threading.Lock()

    def etag(data: bytes) -> str:
        return f'"{hashlib.md5(data).hexdigest()}"'

    class Handler(_Quiet):
        @property
        def key(self) -> str:
            return unquote(urlsplit(self.path).path).partition("/")[2].partition("/")[2]

        def refuse(self, status: int, code: str) -> None:
            self.answer(status, {}, f"<Error><Code>{code}</Code></Error>".encode())

        def put(self) -> None:
            data = self.body()
            with lock:
                now = objects.get(self.key)
                expected = self.headers.get("If-Match")
                refused = (
                    (now is not None and self.headers.get("If-None-Match") and "none-match"),
                    (now is not None and expected not in (None, etag(now)) and "match"),
                    (now is None and expected and "match-absent"),
                )
                if honours.intersection(filter(None, refused)):
                    return self.refuse(412, "PreconditionFailed")
                objects[self.key] = data
            return self.answer(200, {"ETag": etag(data)})

        def get(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            with lock:
                if "list-type" in query:
                    prefix = query.get("prefix", [""])[0]
                    found = {key: data for key, data in objects.items() if key.startswith(prefix)}
                    entries = "".join(
                        f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size>"
                        f"<ETag>{escape(etag(data))}</ETag></Contents>"
                        for key, data in found.items()
                    )
                    page = f"<IsTruncated>false</IsTruncated>{entries}"
                    body = f"<ListBucketResult>{page}</ListBucketResult>".encode()
                    return self.answer(200, {"Content-Type": "application/xml"}, body)
                data = objects.get(self.key)
            if data is None:
                return self.refuse(404, "NoSuchKey")
            headers = {"ETag": etag(data)}
            if self.command in _HEAD:
                headers["Content-Length"] = str(len(data))
            return self.answer(200, headers, data)

        def delete(self) -> None:
            with lock:
                objects.pop(self.key, None)
            self.answer(204, {})

        do_PUT, do_GET, do_HEAD, do_DELETE = put, get, get, delete  # noqa: N815

    with _serving(Handler, certificate) as endpoint:
        yield endpoint
