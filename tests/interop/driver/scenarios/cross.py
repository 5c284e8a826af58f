"""Languages together: two producers and three consumers of one group share 8 queues on 2 brokers."""

from ..clients import Runs, wait_until
from ..ledger import Stored, check_clustering, check_sent
from ..settle import Group, settle, wait_committed

MESSAGES = 200
RECEIVE_SECONDS = 60


def run(report, cluster, name, producers, consumers, folder):
    """Each message is received once, and each queue has one owner, whatever the languages."""
    topic = f"cross-{name}"
    with Runs(folder) as runs:
        cluster.create_topic(topic, 4)
        members = [
            runs.start(
                client,
                "consume",
                "consumes",
                namesrv=cluster.namesrv.address,
                topic=topic,
                group=f"{topic}-readers",
                member=f"member-{number}",
            )
            for number, client in enumerate(consumers)
        ]
        languages = " and ".join(client.name for client in consumers)
        settled = report.check(
            f"{name}: {languages} agree on the division of 8 queues",
            lambda: f"after {settle(cluster, topic, [Group(members)]):.1f} s",
        )
        if not settled:
            return
        report.check(
            f"{name}: {' and '.join(client.name for client in producers)} send to them",
            lambda: _exchange(cluster, topic, producers, members, runs),
        )
        stored = Stored(cluster.stored(topic))
        report.check(
            f"{name}: every message is received once, every queue is owned once",
            lambda: check_clustering(members, stored, "main-", stored.keys("main-")),
        )


def _exchange(cluster, topic, producers, members, runs):
    senders = [
        runs.start(
            client,
            "produce",
            "produces",
            namesrv=cluster.namesrv.address,
            topic=topic,
            group=f"{topic}-{number}",
            count=MESSAGES,
            prefix=f"main-{number}",
            large_every=50,
        )
        for number, client in enumerate(producers)
    ]
    for sender in senders:
        sender.wait_for("done", RECEIVE_SECONDS)
    runs.finish(senders)
    want = MESSAGES * len(senders)
    stored = Stored(cluster.stored(topic, at_least=want))
    for sender in senders:
        check_sent(sender, "sync", MESSAGES, stored)

    def received():
        return sum(event["key"].startswith("main-") for run in members for event in run.of("received"))

    wait_until(lambda: received() >= want, RECEIVE_SECONDS, lambda: f"{received()} of {want} messages came")
    wait_committed(cluster, topic, f"{topic}-readers", Group(members))
    runs.finish(members)
    return f"{want} messages"
