"""A web server over a folder that drops connections, sends too little, or hardly anything, as configured."""

import contextlib
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

DRIP_SECONDS = 0.05


class Unreliable(BaseHTTPRequestHandler):
    """GET with ranges. The server chooses how each request is answered.

    ``well``: as requested; ``drop``: closed before the first byte; ``cut``: closed in the middle; ``short``: fewer
    bytes than requested, but consistently; ``refuse``: a 503; ``drip``: a byte now and then; ``drip head``: the same
    from the first byte on; ``flood``: without an end; ``continues``: interim answers without an end;
    ``trailers``: half of the bytes, then trailers without an end; ``byte``: one byte, and then hung up.
    """

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        assert isinstance(self.server, Server)
        path = self.server.folder / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        whole = path.read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last = (int(wanted[1]), min(int(wanted[2] or len(whole)), len(whole) - 1)) if wanted else (0, None)
        data = whole[first : None if last is None else last + 1]
        behavior = self.server.choose(path) if body else "well"
        if behavior == "drop":
            self.close_connection = True
            return
        if behavior == "refuse":
            self.send_error(503)
            return
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
        half = data[: len(data) // 2]
        chunk = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(half), half)
        floods = {
            "flood": (head + b"\r\n", bytes(1 << 20)),
            "continues": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
            "trailers": (head + chunk, b"name: value\r\n" * 1000),
        }
        if behavior in ("drip", "drip head", *floods):
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.flood(*floods[behavior]) if behavior in floods else self.trickle(head + b"\r\n", data)
            return
        if behavior == "short" and wanted and len(data) > 1:
            data = data[: len(data) // 2]
        self.send_response(206 if wanted else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) if body else len(whole)))
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{first + len(data) - 1}/{len(whole)}")
        self.end_headers()
        if body:
            self.wfile.write(data[: {"cut": len(data) // 2, "byte": 1}.get(behavior, len(data))])
        if behavior in ("cut", "byte"):
            self.close_connection = True

    def trickle(self, head: bytes, data: bytes) -> None:
        """A byte every ``DRIP_SECONDS``, which is more often than any timeout of a socket."""
        assert isinstance(self.server, Server)
        if "drip head" not in self.server.weights:
            self.wfile.write(head)
            head = b""
        for byte in head + data:
            if self.server.stopped.wait(DRIP_SECONDS):
                return
            self.wfile.write(bytes([byte]))

    def flood(self, start: bytes, endless: bytes) -> None:
        assert isinstance(self.server, Server)
        self.wfile.write(start)
        while not self.server.stopped.is_set():
            self.wfile.write(endless)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """``weights`` are how often each behavior is chosen, ``counts`` how often it was."""

    def __init__(self, folder: Path, weights: Mapping[str, float], seed: int) -> None:
        super().__init__(("127.0.0.1", 0), Unreliable)
        self.folder, self.random = folder, random.Random(seed)
        self.weights = weights
        self.counts: Counter[str] = Counter()
        self.stopped = threading.Event()

    def choose(self, path: Path) -> str:
        chosen = self.random.choices(list(self.weights), list(self.weights.values()))[0]
        self.counts[chosen] += 1
        return chosen


@contextmanager
def serving(folder: Path, weights: Mapping[str, float], seed: int = 0) -> Iterator[tuple[str, Server]]:
    """The address of a running server, and the server."""
    with Server(folder, weights, seed) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", server
        finally:
            server.stopped.set()
            server.shutdown()
            thread.join()
