"""Which header encoding a client writes: seen by a listener, so that no variant tests the other one."""

import socket
import struct

from ..clients import Runs
from ..ledger import require

ACCEPT_SECONDS = 30


def run(report, client, folder):
    """The first frame that the client sends to its name server has the encoding of its name."""
    want = 1 if client.name.endswith("rocketmq") else 0
    report.check(f"{client.name}: header type is {want}", lambda: _check(client, want, folder))


def _check(client, want, folder):
    with Runs(folder) as runs, socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(ACCEPT_SECONDS)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        runs.start(client, "produce", "shows-its-header", namesrv=address, topic="encoding", count=1)
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(ACCEPT_SECONDS)
            start = b""
            while len(start) < 8:
                more = connection.recv(8 - len(start))
                require(more, "the client closed the connection")
                start += more
    _, header = struct.unpack(">iI", start)
    require(header >> 24 == want, f"header type {header >> 24}")
