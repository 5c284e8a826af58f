"""Command line of the interop tests."""

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from . import clients, install
from .report import Report
from .scenarios import crash, cross, encodings, examples, groups, keys, session, sizes
from .servers import Apache, RingMq, fresh_folder

SOURCE = Path(__file__).resolve().parent.parent
ROOT = SOURCE.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
SCENARIOS = ("encodings", "session", "cross", "groups", "sizes", "keys", "crash", "examples")


def main(arguments):
    """Installs, runs the scenarios, returns the exit code."""
    options = _parse(arguments)
    build = Path(options.build)
    install.install(SOURCE, build)
    if options.peer in Apache.names:
        peer = Apache(options.peer, install.apache(SOURCE, build, options.peer))
    else:
        peer = RingMq(options.ringmq or install.ringmq(ROOT, TARGET))
    rust = install.rust(ROOT, TARGET)
    every_client = [*clients.every_client(build, SOURCE / "clients"), clients.rust(rust)]
    report = Report()
    folder = Path(tempfile.mkdtemp(prefix="ringmq-interop-"))
    print(f"servers: {peer.name}; logs and data: {folder} (kept if anything fails)", flush=True)
    plan = Plan(peer, report, folder, every_client, options)
    for name in options.scenarios:
        try:
            getattr(plan, name)()
        except Exception as error:  # Servers that don't start must not hide the scenarios after this one.
            report.fail(f"{name}: the scenario did not run to its end", error)
    if not report.failures:
        shutil.rmtree(folder)
    return report.finish()


class Plan:
    """Which clients meet which servers in each scenario."""

    def __init__(self, peer, report, folder, every_client, options):
        self._peer, self._report, self._folder = peer, report, folder
        self._clients, self._options = every_client, options

    def encodings(self):
        """No servers needed: what the clients write."""
        for client in self._chosen():
            encodings.run(self._report, client, self._fresh(f"encodings-{client.name}"))

    def session(self):
        """Each client alone with one broker."""
        with self._peer.cluster(self._fresh("session"), ["broker-a"]) as cluster:
            for client in self._chosen():
                session.run(self._report, cluster, client, self._fresh(f"session-{client.name}"))

    def cross(self):
        """Mixed languages on two brokers; between them the two casts have every language in each role."""
        casts = {
            "java-go-node": (["cpp-python", "java-5.5.0-json"], ["java-4.9.8-json", "go-v2-json", "node-ali-ons"]),
            "go-cpp-java": (["node-ali-ons", "go-v2-json"], ["go-v2-rocketmq", "cpp-python", "java-5.5.0-rocketmq"]),
        }
        with self._peer.cluster(self._fresh("cross"), ["broker-a", "broker-b"]) as cluster:
            for name, (producers, consumers) in casts.items():
                cast = [[self._named(client) for client in part] for part in (producers, consumers)]
                cross.run(self._report, cluster, name, *cast, self._fresh(f"cross-{name}"))

    def groups(self):
        """Members of all languages that rely on the same division, in one group."""
        names = ["rust", "java-4.9.8-json", "java-5.5.0-json", "go-v2-json"]
        clients = [self._named(name) for name in names]
        with self._peer.cluster(self._fresh("groups"), ["broker-a", "broker-b"]) as cluster:
            groups.run(self._report, cluster, clients, self._fresh("groups-runs"), self._options.seed)

    def sizes(self):
        """The clients whose own limits can be raised."""
        with self._peer.cluster(self._fresh("sizes"), ["broker-a"]) as cluster:
            for client in self._chosen("java-4.9.8-json", "java-5.5.0-json", "go-v2-json"):
                sizes.run(self._report, cluster, client, self._fresh(f"sizes-{client.name}"))

    def keys(self):
        """The clients that can look messages up."""
        with self._peer.cluster(self._fresh("keys"), ["broker-a", "broker-b"]) as cluster:
            clients = self._chosen("java-4.9.8-json", "java-5.5.0-json", "java-5.5.0-rocketmq")
            keys.run(self._report, cluster, clients, self._fresh("keys-runs"))

    def crash(self):
        """The only scenario in which a broker dies."""
        with self._peer.cluster(self._fresh("crash"), ["broker-a"]) as cluster:
            crash.run(
                self._report,
                cluster,
                self._named("java-4.9.8-json"),
                self._fresh("crash-load"),
                self._options.crashes,
                self._peer.restart_seconds_max,
            )

    def examples(self):
        """What the README tells a new user to run."""
        with self._peer.standalone(self._fresh("examples")) as standalone:
            home = self._fresh("examples-home")
            examples.run(self._report, standalone, self._options.build, SOURCE / "examples", home)

    def _chosen(self, *names):
        # The Rust runner only consumes: its client has a suite of its own.
        others = [client for client in self._clients if client.name != "rust"]
        wanted = [client for client in others if not names or client.name in names]
        return [client for client in wanted if self._options.client in client.name]

    def _named(self, name):
        return next(client for client in self._clients if client.name == name)

    def _fresh(self, name):
        return fresh_folder(self._folder, name)


def _parse(arguments):
    parser = argparse.ArgumentParser(prog="tests/interop/run.sh", description=__doc__)
    names = ", ".join(SCENARIOS)
    parser.add_argument("scenarios", nargs="*", default=SCENARIOS, help=f"of {names}; default all")
    parser.add_argument("--peer", choices=["ringmq", *Apache.names], default="ringmq", help="whose servers")
    parser.add_argument("--client", default="", help="only clients whose name contains this")
    parser.add_argument("--crashes", type=int, default=20, help="how often the broker is killed")
    parser.add_argument("--seed", type=int, default=1, help="decides who comes and goes in `groups`")
    parser.add_argument("--ringmq", type=Path, help="the binary; without this it is built first")
    parser.add_argument("--build", default=TARGET / "interop", help="where clients are installed")
    options = parser.parse_args(arguments)
    unknown = set(options.scenarios) - set(SCENARIOS)
    if unknown:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    return options
