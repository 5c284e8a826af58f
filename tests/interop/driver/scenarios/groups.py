"""One group of Rust, Java and Go members that come, leave and are killed.

After each change the members left must settle within one rebalance period: every queue owned by
exactly one of them, in even shares. Losing a notification may cost a period, never more.
"""

import random
from collections import Counter

from ..clients import Runs
from ..settle import Group, settle

QUEUES = 6  # On each of two brokers.
CHANGES = 10
MEMBERS_MAX = 5
# The period of all clients, and what a probe round and a cold JVM take besides.
REBALANCE_SECONDS = 20
SLACK_SECONDS = 10


def run(report, cluster, clients, folder, seed):
    """`clients` share a group; the seed decides who comes and who goes."""
    topic = "mixed-group"
    numbers = random.Random(seed)
    with Runs(folder) as runs:
        cluster.create_topic(topic, QUEUES)
        members = [_join(runs, cluster, topic, client, f"first-{client.name}") for client in clients]
        report.check(
            f"groups: {', '.join(client.name for client in clients)} divide {2 * QUEUES} queues",
            lambda: f"after {settle(cluster, topic, [Group(members)]):.1f} s",
        )
        for number in range(CHANGES):
            what = _change(runs, cluster, topic, members, clients, numbers, number)
            names = Counter(run.name.split()[0] for run in members)
            report.check(
                f"groups: change {number + 1} (SEED={seed}), {what}: "
                + ", ".join(f"{count} {name}" for name, count in sorted(names.items())),
                lambda: _settled(cluster, topic, members),
            )


def _settled(cluster, topic, members):
    seconds = settle(cluster, topic, [Group(members)])
    limit = REBALANCE_SECONDS + SLACK_SECONDS
    if seconds > limit:
        raise TimeoutError(f"settled after {seconds:.1f} s, allowed are {limit}")
    return f"after {seconds:.1f} s"


def _change(runs, cluster, topic, members, clients, numbers, number):
    """Makes one member come, leave or die; says what happened."""
    may_join, may_go = len(members) < MEMBERS_MAX, len(members) > 2
    kinds = ["join"] * may_join + ["leave", "kill"] * may_go
    kind = numbers.choice(kinds)
    if kind == "join":
        client = numbers.choice(clients)
        members.append(_join(runs, cluster, topic, client, f"joins-{number}"))
        return f"{client.name} joins"
    member = members.pop(numbers.randrange(len(members)))
    if kind == "leave":
        member.finish()
    else:
        member.kill()
    return f"{member.name.split()[0]} {'leaves' if kind == 'leave' else 'is killed'}"


def _join(runs, cluster, topic, client, label):
    member = runs.start(
        client,
        "consume",
        label,
        namesrv=cluster.namesrv.address,
        topic=topic,
        group=f"{topic}-readers",
        member=label,
    )
    member.wait_for("started", 60)
    return member
