"""Bytes from a web server that may drop the connection, send too little, too much, or hardly anything.

A server may keep us waiting ``_GRACE_SECONDS`` in all, and one second more per ``_LOWEST_RATE`` bytes of the file that
have arrived. All it may send is ``_ATTEMPTS`` times the file and ``_HEAD_ALLOWANCE``; whatever comes through the socket
counts, such as heads, trailers and redirections. So total time and total bytes have limits that follow from the file's
size. Only time spent waiting counts: a reader may take as long as it likes between two batches. A connection that drops
is opened again where it broke off, at most ``_ATTEMPTS`` times without a further byte; the pauses count as waiting.
"""

import http.client
import io
import time
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

import pyarrow as pa

from zoo.command import one_line

_GRACE_SECONDS = 30.0
_LOWEST_RATE = 64 << 10
_ATTEMPTS = 5
_FIRST_PAUSE_SECONDS = 0.5
"""Before the second attempt; each further pause is twice as long."""
_CHUNK = _HEAD_ALLOWANCE = 1 << 16
_TEMPORARY = (408, 425, 429, 500, 502, 503, 504)
_FAULTS = (OSError, http.client.HTTPException)


class _Abandoned(ConnectionError):
    """The server keeps us waiting longer than it may, or sends more."""


class _Patience:
    """What a server may still do while it sends a file of ``due`` bytes; the seconds inside ``with`` are counted."""

    def __init__(self, address: str, due: int) -> None:
        self.address, self.due = address, due
        self.start, self.waited = 0.0, 0.0
        # bytes of the file, each counted once; bytes of all kinds; failures since the last byte of the file
        self.arrived, self.received, self.failures = 0, 0, 0

    def __enter__(self) -> "_Patience":
        self.start = time.monotonic() - self.waited
        return self

    def __exit__(self, *error: object) -> None:
        self.waited = time.monotonic() - self.start

    def left(self) -> float:
        """The seconds it may still take until its next byte."""
        waited = time.monotonic() - self.start
        left = _GRACE_SECONDS + self.arrived / _LOWEST_RATE - waited
        if left <= 0:
            raise _Abandoned(f"only {self.arrived:,} bytes in {waited:.0f} s, {_LOWEST_RATE:,} per second are due")
        if self.received > _ATTEMPTS * (self.due + _HEAD_ALLOWANCE):
            raise _Abandoned(f"{self.received:,} bytes sent for a file of at most {self.due:,}")
        return left

    def failed(self, error: Exception) -> None:
        """Waits a little before the next attempt; raises a ConnectionError where there will be none."""
        self.failures += 1
        if isinstance(error, HTTPError):
            error.close()  # it is also an answer, and holds its connection
        reason = error.reason if isinstance(error, URLError) else error
        refused = isinstance(error, HTTPError) and error.code not in _TEMPORARY
        if refused or isinstance(reason, _Abandoned | TimeoutError) or self.failures == _ATTEMPTS:
            reason = one_line(reason) if isinstance(reason, Exception) else reason
            tried = f" in {self.failures} attempts" if self.failures > 1 else ""
            raise ConnectionError(f"{self.address} does not answer{tried}: {reason}") from error
        time.sleep(_FIRST_PAUSE_SECONDS * 2 ** (self.failures - 1))


class _PatientFile(io.RawIOBase):
    """A socket as a file: every read of a response comes through here, limited by the patience left."""

    def __init__(self, socket: Any, patience: _Patience) -> None:
        self.socket, self.patience = socket, patience
        self.file = socket.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.socket.settimeout(self.patience.left())
        count = self.file.readinto(buffer)
        self.patience.received += count
        return count

    def close(self) -> None:
        self.file.close()
        super().close()


class _PatientHandler(request.HTTPHandler, request.HTTPSHandler):
    """http and https only, so that a redirection to ``file:`` or ``ftp:`` fails."""

    def __init__(self, patience: _Patience) -> None:
        request.HTTPSHandler.__init__(self)
        self.patience = patience

    def http_open(self, req: request.Request) -> Any:
        return self.do_open(partial(self._connect, http.client.HTTPConnection), req)

    def https_open(self, req: request.Request) -> Any:
        return self.do_open(partial(self._connect, http.client.HTTPSConnection), req)

    def _connect(self, kind: type[http.client.HTTPConnection], host: str, **options: Any) -> http.client.HTTPConnection:
        """A connection that is limited by the patience from the first packet on, heads of answers too."""

        def respond(socket: Any, *arguments: Any, **named: Any) -> http.client.HTTPResponse:
            answer = http.client.HTTPResponse(socket, *arguments, **named)
            answer.fp.close()
            answer.fp = io.BufferedReader(_PatientFile(socket, self.patience))
            return answer

        options["timeout"] = self.patience.left()
        connection = kind(host, **options)
        connection.response_class = respond  # pyright: ignore[reportAttributeAccessIssue]
        return connection


class _Redirections(request.HTTPRedirectHandler):
    """Follows redirections, without the token where they lead to another host."""

    def redirect_request(
        self, req: request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> request.Request | None:
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and urlsplit(new.full_url).netloc != urlsplit(req.full_url).netloc:
            new.remove_header("Authorization")
        return new


def _open_address(address: str, patience: _Patience, headers: Mapping[str, str]) -> http.client.HTTPResponse:
    """The response to a GET; any status but success is an OSError."""
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler(),
        request.UnknownHandler(),
        request.HTTPDefaultErrorHandler(),
        request.HTTPErrorProcessor(),
        _Redirections(),
        _PatientHandler(patience),
    ):
        opener.add_handler(handler)
    return opener.open(request.Request(address, headers=dict(headers)))


def fetch_small(address: str, limit: int, headers: Mapping[str, str] | None = None) -> bytes:
    """A whole small file; one of more than ``limit`` bytes is a ValueError, a server that fails a ConnectionError."""
    with _Patience(address, limit) as patience:
        while True:
            try:
                with _open_address(address, patience, headers or {}) as answer:
                    data = b""
                    while chunk := answer.read(min(_CHUNK, limit + 1 - len(data))):
                        data += chunk
                        patience.arrived = max(patience.arrived, len(data))
                    if len(data) > limit:
                        raise ValueError(f"{address} is damaged: more than {limit:,} bytes")
                    if answer.length:
                        raise ConnectionError(f"it broke off after {len(data):,} bytes")
                    return data
            except _FAULTS as error:
                patience.failed(error)


class ServedSource:
    """The Arrow messages of a file on a web server, which should have ``size`` bytes."""

    def __init__(self, address: str, size: int, headers: Mapping[str, str] | None = None) -> None:
        self.address, self.size, self.headers = address, size, dict(headers or {})
        self.start, self.position = 0, 0
        self.kept = pa.py_buffer(b"")
        self.patience = _Patience(address, size)
        self.answer: http.client.HTTPResponse | None = None

    def slice(self, offset: int, length: int) -> pa.Buffer:
        """The bytes from ``offset`` on, which is where the last slice began or where it ended."""
        assert offset in (self.start, self.position)
        if offset != self.start:
            self.start, self.kept = offset, pa.py_buffer(b"")
        whole = pa.allocate_buffer(length)
        view = memoryview(whole).cast("B")
        view[: self.kept.size] = memoryview(self.kept).cast("B")
        with self.patience:
            self.fill(view[self.kept.size :])
        self.kept = whole
        return whole

    def fill(self, view: memoryview) -> None:
        """The next bytes of the file; where the connection drops it is opened again."""
        while len(view):
            try:
                if self.answer is None:
                    self.answer = self.open_at(self.position)
                count = self.answer.readinto(view[:_CHUNK])
                if count == 0:
                    raise ConnectionError(f"it broke off after {self.position:,} of {self.size:,} bytes")
            except _FAULTS as error:
                self.close()
                self.patience.failed(error)
            else:
                self.position = self.patience.arrived = self.position + count
                self.patience.failures = 0
                view = view[count:]

    def open_at(self, position: int) -> http.client.HTTPResponse:
        """An answer whose next byte is the one at ``position``; a server without ranges sends all bytes before it."""
        answer = _open_address(self.address, self.patience, self.headers | {"Range": f"bytes={position}-"})
        try:
            skip = position
            if answer.status == 206:
                if not str(answer.headers["Content-Range"]).startswith(f"bytes {position}-"):
                    raise ConnectionError(f"byte {position:,} was requested, {answer.headers['Content-Range']} came")
                skip = 0
            while skip and (data := answer.read(min(_CHUNK, skip))):
                skip -= len(data)
        except BaseException:
            answer.close()
            raise
        return answer

    def close(self) -> None:
        if self.answer is not None:
            self.answer.close()
            self.answer = None
