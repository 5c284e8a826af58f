"""Command line of the interop tests."""

import argparse
import os
import tempfile
from pathlib import Path

from . import clients, install
from .report import Report
from .scenarios import session
from .servers import Apache, RingMq, fresh_folder

SOURCE = Path(__file__).resolve().parent.parent
ROOT = SOURCE.parent.parent
SCENARIOS = ("session",)


def main(arguments):
    """Installs, runs the scenarios, returns the exit code."""
    options = _parse(arguments)
    build = Path(options.build)
    install.install(SOURCE, build, apache=options.peer == Apache.name)
    peer = Apache(build / "apache-4.9.7") if options.peer == Apache.name else RingMq(options.ringmq)
    report = Report()
    folder = Path(tempfile.mkdtemp(prefix="ringmq-interop-"))
    print(f"servers: {peer.name}; logs and data: {folder}", flush=True)
    every_client = clients.every_client(build, SOURCE / "clients")
    if "session" in options.scenarios:
        with peer.cluster(fresh_folder(folder, "session"), ["broker-a"]) as cluster:
            for client in every_client:
                if options.client in client.name:
                    session.run(report, cluster, client, fresh_folder(folder, "session-" + client.name))
    return report.finish()


def _parse(arguments):
    parser = argparse.ArgumentParser(prog="tests/interop/run.sh", description=__doc__)
    parser.add_argument("scenarios", nargs="*", default=SCENARIOS, help=f"of {', '.join(SCENARIOS)}; default all")
    parser.add_argument("--peer", choices=["ringmq", Apache.name], default="ringmq", help="whose servers")
    parser.add_argument("--client", default="", help="only clients whose name contains this")
    parser.add_argument("--ringmq", default=ROOT / "target" / "release" / "ringmq", help="the binary")
    parser.add_argument("--build", default=ROOT / "target" / "interop", help="where clients are installed")
    return parser.parse_args(arguments)
