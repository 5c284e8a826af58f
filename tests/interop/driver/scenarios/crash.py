"""SIGKILL under load, again and again.

A Java producer sends from many threads without rest. The broker is killed, started again on the
same data at once, and asked with a bare socket until it accepts a send. Then everything stored is
pulled: what was acknowledged or seen before must be where it was, and offsets are dense.
"""

import time

from ..clients import Runs, wait_until
from ..ledger import Stored, check_position, require
from ..remoting import Connection

ACKNOWLEDGED_PER_ROUND = 2_000
RESTART_SECONDS = 60
QUEUES = 8


def run(report, cluster, client, folder, rounds, restart_seconds_max):
    """Kills the only broker of the cluster `rounds` times."""
    topic = "crash"
    cluster.create_topic(topic, QUEUES)
    cluster.create_topic("crash-probe", 1)
    with Runs(folder) as runs:
        load = runs.start(
            client,
            "load",
            "loads",
            namesrv=cluster.namesrv.address,
            topic=topic,
            prefix="load",
            threads=32,
            timeout_ms=2_000,
            retries=0,
        )
        load.wait_for("started", 30)
        crashes = Crashes(cluster, topic, load)
        for number in range(1, rounds + 1):
            if not report.check(f"SIGKILL {number} of {rounds} loses and moves nothing", crashes.once):
                return
        if restart_seconds_max is not None:
            report.check(
                f"every restart accepts a send in under {restart_seconds_max:g} s",
                lambda: crashes.check_restarts(restart_seconds_max),
            )
        runs.finish([load])
        report.check("the producer's last acknowledgements are stored as well", crashes.verify)


class Crashes:
    """One broker, its load, and what was seen of the stored messages so far."""

    def __init__(self, cluster, topic, load):
        self._cluster, self._topic, self._load = cluster, topic, load
        self._broker = next(iter(cluster.brokers.values()))
        self._seen = {}
        self._restarts = []

    def once(self):
        """One kill, one restart, one comparison."""
        before = self._load.counts["sent"]
        self._load.tell("r")
        wait_until(
            lambda: self._load.counts["sent"] >= before + ACKNOWLEDGED_PER_ROUND,
            RESTART_SECONDS,
            lambda: f"{self._load.counts['sent'] - before} of {ACKNOWLEDGED_PER_ROUND} sends were accepted: "
            f"{self._load.of('failed')[-1:]}",
        )
        self._broker.kill()
        started = time.monotonic()
        self._broker.start()
        self._wait_accepted()
        self._restarts.append(time.monotonic() - started)
        self._load.tell("p")  # All that is stored is read each time, so it may not grow without end.
        return f"{self.verify()}; accepts sends after {self._restarts[-1] * 1000:.0f} ms"

    def _wait_accepted(self):
        """Sends with a new connection until one send is accepted."""
        deadline = time.monotonic() + RESTART_SECONDS
        while True:
            try:
                with Connection(self._broker.address, 5.0) as connection:
                    connection.send("crash-probe", 0, b"probe", f"probe-{time.monotonic_ns()}")
                    return
            except Exception as error:
                require(self._broker.process.poll() is None, f"the broker ended; see {self._broker.log}")
                require(time.monotonic() < deadline, f"no send accepted: {error}")
                time.sleep(0.005)

    def verify(self):
        """Compares everything stored with the acknowledgements and with what was seen before."""
        acknowledged = [event for event in self._load.of("sent") if event["status"] == "SEND_OK"]
        self._cluster.wait_topic(self._topic)  # The restarted broker registers again.
        stored = Stored(self._cluster.stored(self._topic, at_least=len(acknowledged)))
        for event in acknowledged:
            require(event["key"] in stored.by_key, f"{event['key']} was acknowledged and is lost")
            check_position(event, *stored.by_key[event["key"]])
        for key, before in self._seen.items():
            require(key in stored.by_key, f"{key} was seen before and is lost")
            _, record = stored.by_key[key]
            require(record == before, f"{key} was {before} and is {record}")
        self._seen = {key: record for key, (_, record) in stored.by_key.items()}
        return f"{len(acknowledged)} acknowledged, {len(self._seen)} stored"

    def check_restarts(self, seconds_max):
        """The slowest of all restarts."""
        slowest = max(self._restarts)
        require(slowest < seconds_max, f"the slowest took {slowest:.2f} s")
        return f"slowest {slowest * 1000:.0f} ms"
