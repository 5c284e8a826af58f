"""One client on its own: every way to send, and five consumers at once.

Two members share a group, one filters by tags, two get everything (broadcasting). Then the group
comes back after a clean stop and must not be given anything twice, and a topic that nobody created
is created by sending to it.
"""

from ..clients import Runs, wait_until
from ..ledger import (
    Stored,
    check_broadcasting,
    check_clustering,
    check_exactly,
    check_member,
    check_sent,
    require,
)
from ..remoting import Connection
from ..settle import Group, settle, wait_committed

MESSAGES_PER_MODE = 60
TAGS = "A,B,C"
RECEIVE_SECONDS = 60


def run(report, cluster, client, folder):
    """Runs the whole session of one client; each promise is one check of the report."""
    topic = "session-" + client.name.replace(".", "_")
    with Runs(folder) as runs:
        session = Session(report, cluster, client, topic, runs)
        steps = [
            ("a topic is created explicitly", session.create_topic),
            ("its consumers divide the queues", session.start_consumers),
            ("it sends in every way that it can", session.produce),
            ("its consumers commit, and stop in good order", session.stop_consumers),
        ]
        if not all(report.check(f"{client.name}: {name}", step) for name, step in steps):
            return
        session.evaluate()
        report.check(f"{client.name}: a group comes back and is given nothing twice", session.resume)
        report.check(f"{client.name}: a topic is created by the first send", session.auto_create)


class Session:
    """The processes and messages of one client's session."""

    def __init__(self, report, cluster, client, topic, runs):
        self._report, self._cluster, self._client = report, cluster, client
        self._topic, self._runs = topic, runs
        self._namesrv = cluster.namesrv.address

    def create_topic(self):
        """By the client itself where it has a call for that, otherwise by the driver."""
        if not self._client.creates_topics:
            self._cluster.create_topic(self._topic, 8)
            return "by the driver"
        for name, broker in self._cluster.brokers.items():
            creation = self._runs.start(
                self._client,
                "create-topic",
                f"creates-on-{name}",
                namesrv=self._namesrv,
                topic=self._topic,
                broker=broker.address,
                queues=8,
            )
            creation.wait_for("done", 30)
            self._runs.finish([creation])
        self._cluster.wait_topic(self._topic)
        return "by the client"

    def start_consumers(self):
        """Starts all five and waits until each queue has its owner."""
        self._shared = [self._consumer(f"shared-{n}", "shared") for n in (1, 2)]
        self._filtered = [self._consumer("filtered", "filtered", tags="A || B")]
        self._everything = [
            self._consumer(f"everything-{n}", "everything", model="broadcasting") for n in (1, 2)
        ]
        groups = [Group(self._shared), Group(self._filtered), Group(self._everything, broadcasting=True)]
        return f"after {settle(self._cluster, self._topic, groups):.1f} s"

    def _consumer(self, member, group, **options):
        return self._runs.start(
            self._client,
            "consume",
            member,
            namesrv=self._namesrv,
            topic=self._topic,
            group=f"{self._topic}-{group}",
            member=member,
            **options,
        )

    def produce(self):
        """Sends in every mode, small bodies and some that clients compress; waits for all to arrive."""
        self._producer = self._runs.start(
            self._client,
            "produce",
            "produces",
            namesrv=self._namesrv,
            topic=self._topic,
            group=f"{self._topic}-producers",
            modes=",".join(self._client.modes),
            count=MESSAGES_PER_MODE,
            tags=TAGS,
            prefix="main",
            large_every=20,
        )
        self._producer.wait_for("done", 60)
        self._runs.finish([self._producer])
        failed = self._producer.of("failed")
        require(not failed, f"{len(failed)} refused: {failed[:2]}")
        sent = {event["key"] for event in self._producer.of("sent")}
        wanted = len(sent)
        wait_until(
            lambda: _count(self._shared) >= wanted,
            RECEIVE_SECONDS,
            lambda: f"{_count(self._shared)} of {wanted} messages came to the group",
        )
        wait_until(
            lambda: all(_count([run]) >= wanted for run in self._everything),
            RECEIVE_SECONDS,
            "both broadcasting members have everything",
        )
        matching = len([event for event in self._producer.of("sent") if event["tag"] in ("A", "B")])
        wait_until(lambda: _count(self._filtered) >= matching, RECEIVE_SECONDS, "the filter lets A and B through")
        return f"{wanted} messages by {', '.join(self._client.modes)}"

    def stop_consumers(self):
        """Ends them as an application does, once the group's offsets are committed."""
        wait_committed(self._cluster, self._topic, f"{self._topic}-shared", Group(self._shared))
        self._runs.finish([*self._shared, *self._filtered, *self._everything])

    def evaluate(self):
        """Compares what was sent, stored and received."""
        name = self._client.name
        stored = Stored(self._cluster.stored(self._topic))
        for mode in self._client.modes:
            self._report.check(
                f"{name}: {mode} sends are stored where they were acknowledged",
                lambda mode=mode: check_sent(self._producer, mode, MESSAGES_PER_MODE, stored),
            )
        everything = stored.keys("main-")
        matching = stored.keys("main-", tags=("A", "B"))
        self._report.check(
            f"{name}: two members share the queues, each message once and in order",
            lambda: check_clustering(self._shared, stored, "main-", everything),
        )
        self._report.check(
            f"{name}: a tag expression lets matching messages through and no other",
            lambda: check_broadcasting(self._filtered, stored, "main-", matching),
        )
        self._report.check(
            f"{name}: broadcasting gives every member everything",
            lambda: check_broadcasting(self._everything, stored, "main-", everything),
        )

    def resume(self):
        """One member of the shared group starts again: it owns all queues, and nothing old comes."""
        again = self._consumer("shared-again", "shared")
        seconds = settle(self._cluster, self._topic, [Group([again])])
        self._runs.finish([again])
        old = [event["key"] for event in again.of("received") if event["key"].startswith("main-")]
        require(not old, f"given again: {old[:5]}")
        return f"after {seconds:.1f} s"

    def auto_create(self):
        """The client sends to an unknown topic, and reads all of it back from the start."""
        topic = f"{self._topic}-auto"
        count = 24
        producer = self._runs.start(
            self._client,
            "produce",
            "produces-unknown",
            namesrv=self._namesrv,
            topic=topic,
            group=f"{topic}-producers",
            count=count,
            prefix="auto",
            **dict(self._client.auto_create_options),
        )
        producer.wait_for("done", 60)
        self._runs.finish([producer])
        with Connection(self._namesrv) as namesrv:
            queue_counts = {queue_count for _, queue_count in namesrv.route(topic).values()}
        require(queue_counts == {4}, f"queues: {queue_counts}, not what min(client 4, broker 8) gives")
        stored = Stored(self._cluster.stored(topic, at_least=count))
        check_sent(producer, "sync", count, stored)
        consumer = self._runs.start(
            self._client,
            "consume",
            "consumes-unknown",
            namesrv=self._namesrv,
            topic=topic,
            group=f"{topic}-readers",
            member="auto",
        )
        wait_until(
            lambda: _count([consumer], "auto-") >= count,
            RECEIVE_SECONDS,
            lambda: f"{_count([consumer], 'auto-')} of {count} messages came back",
        )
        self._runs.finish([consumer])
        check_exactly(check_member(consumer, stored, "auto-"), stored.keys("auto-"), consumer.name)
        return f"{count} messages in 4 queues"


def _count(runs, prefix="main-"):
    return sum(1 for run in runs for event in run.of("received") if event["key"].startswith(prefix))
