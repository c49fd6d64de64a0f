"""A server in a process of its own, and raw sockets to it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
RUN = "from veilrec.cli.main import run; run()"
# The encoder of the toys instead of a network: a toy release has none.
TOY = """
import veilrec.cli.release as command
from tests.serving.toys import letters
command._embedder_of = lambda release: letters
"""


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    address: str
    log_file: Path

    @property
    def place(self):
        parts = urlsplit(self.address)
        return parts.hostname or "", parts.port or 0

    def ask(self, method, path, body=None, headers=None):
        connection = HTTPConnection(*self.place, timeout=30)
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, content, {"Content-Type": "application/json"} | (headers or {}))
        answer = connection.getresponse()
        got = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        connection.close()
        return got

    def send(self, content, *, timeout=20.0):
        """Raw bytes in, and whatever comes back until the server hangs up or has nothing to say."""
        with socket.create_connection(self.place, timeout=timeout) as opened:
            with suppress(OSError):  # it may have hung up already; its answer is on the way
                opened.sendall(content)
            return self.rest(opened)

    @staticmethod
    def rest(opened):
        came = b""
        try:
            while part := opened.recv(1 << 16):
                came += part
                head, _, body = came.partition(b"\r\n\r\n")
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                if length and len(body) >= int(length[0].split(b":")[1]):
                    break
        except OSError:
            pass
        return came

    def wait_until(self, path="/readyz", seconds=60.0):
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            if self.ask("GET", path)[0] == 200:
                return
            time.sleep(0.05)
        raise AssertionError(self.log_file.read_text())

    def memory(self):
        """Bytes of memory that are in use."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def log(self):
        lines = self.log_file.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def stop(self, number=signal.SIGTERM):
        os.kill(self.process.pid, number)
        return self.process.wait(timeout=60)


@contextmanager
def running(release, log_file, *options, toy_encoder=True):
    """`veilrec serve` on a free port, ready."""
    code = (TOY if toy_encoder else "") + RUN
    command = [sys.executable, "-c", code, "serve", str(release), "--port", "0", "--json", *options]
    with log_file.open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log)
    try:
        line = process.stdout.readline()
        assert line, log_file.read_text()
        server = Running(process, json.loads(line)["address"], log_file)
        if server.address.startswith("http:"):
            server.wait_until()
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def refused(*options):
    """The exit code of a server that does not start, and what it says."""
    command = [sys.executable, "-c", RUN, "serve", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stderr
