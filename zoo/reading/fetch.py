"""Bytes from a web server that may drop the connection, send too little, too much, or hardly anything.

A server may keep us waiting ``GRACE_SECONDS`` in all, and then one second more for every ``LOWEST_RATE`` bytes it has
sent; what it sends is limited, and so is the time that a whole file can take. Only time spent waiting counts: a reader
may take as long as it likes between two batches. A connection that drops is opened again where it broke off, at most
``ATTEMPTS`` times without a further byte; the pause before an attempt is waiting, too.
"""

import http.client
import io
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

import pyarrow as pa

from zoo.command import one_line

GRACE_SECONDS = 30.0
LOWEST_RATE = 64 << 10
ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 0.5
"""Before the second attempt; each further pause is twice as long."""
CHUNK = 1 << 16
TEMPORARY = (408, 425, 429, 500, 502, 503, 504)
FAULTS = (OSError, http.client.HTTPException)


class TooSlow(ConnectionError):
    """The server keeps us waiting longer than it may."""


class Patience:
    """Counts the seconds a server keeps us waiting and the bytes it sends, in all its answers together."""

    def __init__(self) -> None:
        self.waited, self.received = 0.0, 0

    def left(self) -> float:
        """The seconds it may still take until its next byte."""
        left = GRACE_SECONDS + self.received / LOWEST_RATE - self.waited
        if left <= 0:
            raise TooSlow(f"only {self.received:,} bytes in {self.waited:.0f} s, {LOWEST_RATE:,} per second are due")
        return left

    def wait(self, work: Callable[[], Any]) -> Any:
        """What ``work`` returns; the time it takes is counted."""
        start = time.monotonic()
        try:
            return work()
        finally:
            self.waited += time.monotonic() - start


class PatientFile(io.RawIOBase):
    """What arrives at a socket, as a file each read of which is limited by the patience left."""

    def __init__(self, socket: Any, patience: Patience) -> None:
        self.socket, self.patience = socket, patience
        self.file = socket.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.socket.settimeout(self.patience.left())
        count = self.patience.wait(lambda: self.file.readinto(buffer))
        self.patience.received += count
        return count

    def close(self) -> None:
        self.file.close()
        super().close()


class PatientAnswer(http.client.HTTPResponse):
    """An answer whose head, too, must arrive in time."""

    def __init__(self, socket: Any, *arguments: Any, patience: Patience, **named: Any) -> None:
        super().__init__(socket, *arguments, **named)
        self.fp.close()
        self.fp = io.BufferedReader(PatientFile(socket, patience))


def patient(kind: type[http.client.HTTPConnection], patience: Patience) -> Callable[..., http.client.HTTPConnection]:
    """A maker of connections that keep to the patience from the first packet on."""

    def connect(host: str, **options: Any) -> http.client.HTTPConnection:
        options["timeout"] = patience.left()
        connection = kind(host, **options)
        open_socket = connection.connect
        connection.connect = lambda: patience.wait(open_socket)
        connection.response_class = partial(PatientAnswer, patience=patience)  # pyright: ignore[reportAttributeAccessIssue]
        return connection

    return connect


class PatientHandler(request.HTTPHandler, request.HTTPSHandler):
    """http and https, and nothing else: not what a redirection to ``file:`` or ``ftp:`` would need."""

    def __init__(self, patience: Patience) -> None:
        request.HTTPSHandler.__init__(self)
        self.patience = patience

    def http_open(self, req: request.Request) -> Any:
        return self.do_open(patient(http.client.HTTPConnection, self.patience), req)

    def https_open(self, req: request.Request) -> Any:
        return self.do_open(patient(http.client.HTTPSConnection, self.patience), req)


class Redirections(request.HTTPRedirectHandler):
    """Follows a server's redirections, but takes no token to another host."""

    def redirect_request(
        self, req: request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> request.Request | None:
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and urlsplit(new.full_url).netloc != urlsplit(req.full_url).netloc:
            new.remove_header("Authorization")
        return new


def open_address(address: str, patience: Patience, headers: Mapping[str, str]) -> http.client.HTTPResponse:
    """The answer to a GET; whatever else the server answers with is an OSError."""
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler(),
        request.UnknownHandler(),
        request.HTTPDefaultErrorHandler(),
        request.HTTPErrorProcessor(),
        Redirections(),
        PatientHandler(patience),
    ):
        opener.add_handler(handler)
    return opener.open(request.Request(address, headers=dict(headers)))


def fetch_small(address: str, limit: int, headers: Mapping[str, str] | None = None) -> bytes:
    """A whole small file; one of more than ``limit`` bytes is a ValueError, a server that fails a ConnectionError."""
    patience = Patience()
    trials = Trials(address, patience)
    while True:
        try:
            with open_address(address, patience, headers or {}) as answer:
                data = b""
                while chunk := answer.read(min(CHUNK, limit + 1 - len(data))):
                    data += chunk
                if len(data) > limit:
                    raise ValueError(f"{address} is damaged: more than {limit:,} bytes")
                if answer.length:
                    raise ConnectionError(f"it broke off after {len(data):,} bytes")
                return data
        except FAULTS as error:
            trials.failed(error)


class Trials:
    """How often a file was tried since its last byte arrived, and whether to try again."""

    def __init__(self, address: str, patience: Patience) -> None:
        self.address, self.patience, self.failures = address, patience, 0

    def failed(self, error: Exception) -> None:
        """Waits a little before the next attempt; raises a ConnectionError where there will be none."""
        self.failures += 1
        if isinstance(error, HTTPError):
            error.close()  # it is an answer, too, and holds its connection
        reason = error.reason if isinstance(error, URLError) else error
        refused = isinstance(error, HTTPError) and error.code not in TEMPORARY
        if refused or isinstance(reason, TooSlow | TimeoutError) or self.failures == ATTEMPTS:
            reason = one_line(reason) if isinstance(reason, Exception) else reason
            tried = f" in {self.failures} attempts" if self.failures > 1 else ""
            raise ConnectionError(f"{self.address} does not answer{tried}: {reason}") from error
        # counted too: a server that hangs up after every byte would otherwise hold us for as many pauses
        self.patience.wait(partial(time.sleep, FIRST_PAUSE_SECONDS * 2 ** (self.failures - 1)))


class ServedSource:
    """The Arrow messages of a file on a web server, which should have ``size`` bytes."""

    def __init__(self, address: str, size: int, headers: Mapping[str, str] | None = None) -> None:
        self.address, self.size, self.headers = address, size, dict(headers or {})
        self.message = pa.py_buffer(b"")
        self.position = 0
        self.patience = Patience()
        self.trials = Trials(address, self.patience)
        self.answer: http.client.HTTPResponse | None = None

    @property
    def remaining(self) -> int:
        return self.size - self.position

    def next(self) -> None:
        self.message = pa.py_buffer(b"")

    def grow(self, count: int) -> pa.Buffer:
        whole = pa.allocate_buffer(self.message.size + count)
        view = memoryview(whole).cast("B")
        view[: self.message.size] = memoryview(self.message).cast("B")
        self.fill(view[self.message.size :])
        self.message = whole
        return whole

    def fill(self, view: memoryview) -> None:
        """The next bytes of the file; where the connection drops it is opened again."""
        while len(view):
            try:
                if self.patience.received > ATTEMPTS * (self.size + CHUNK):
                    raise TooSlow(f"{self.patience.received:,} bytes sent, and the {self.size:,} of the file not whole")
                if self.answer is None:
                    self.answer = self.open_at(self.position)
                count = self.answer.readinto(view)
                if count == 0:
                    raise ConnectionError(f"it broke off after {self.position:,} of {self.size:,} bytes")
            except FAULTS as error:
                self.close()
                self.trials.failed(error)
            else:
                self.position += count
                self.trials.failures = 0
                view = view[count:]

    def open_at(self, position: int) -> http.client.HTTPResponse:
        """An answer whose next byte is the one at ``position``; a server that knows no ranges sends all before it."""
        answer = open_address(self.address, self.patience, self.headers | {"Range": f"bytes={position}-"})
        try:
            skip = position
            if answer.status == 206:
                if not str(answer.headers["Content-Range"]).startswith(f"bytes {position}-"):
                    raise ConnectionError(f"byte {position:,} was asked for, {answer.headers['Content-Range']} came")
                skip = 0
            while skip and (data := answer.read(min(CHUNK, skip))):
                skip -= len(data)
        except BaseException:
            answer.close()
            raise
        return answer

    def close(self) -> None:
        if self.answer is not None:
            self.answer.close()
            self.answer = None
