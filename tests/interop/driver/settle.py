"""Waiting until consumer groups have divided their queues.

Clients rebalance when they please, and while a queue moves from one member to another a message may
rightly come twice. So the driver sends one probe to each queue, round after round, until two rounds
that follow each other show every queue with exactly one owner and fair shares; only then the measured
messages are sent. One round could not tell: it ends when each probe has arrived somewhere, and a
second owner of a queue, if it is slow, shows its probes only after that.
"""

import time
from collections import Counter
from dataclasses import dataclass

from .clients import holds_within
from .remoting import Connection

ROUND_SECONDS = 3
SETTLE_SECONDS = 90
COMMIT_SECONDS = 30


@dataclass
class Group:
    """Consumers that share a group name."""

    members: list
    broadcasting: bool = False

    def has(self, keys):
        """Whether all of the probes arrived."""
        arrivals = [_probes(run, keys) for run in self.members]
        if self.broadcasting:
            return all(set(arrived) == keys for arrived in arrivals)
        return {key for arrived in arrivals for key in arrived} == keys

    def is_fair(self, keys):
        """Whether one round shows the division that the clients' strategy aims at."""
        arrivals = [_probes(run, keys) for run in self.members]
        if self.broadcasting:
            return all(len(arrived) == len(keys) for arrived in arrivals)
        shares = sorted(len(arrived) for arrived in arrivals)
        counts = Counter(key for arrived in arrivals for key in arrived)
        return max(counts.values()) == 1 and shares[-1] - shares[0] <= 1


def _probes(run, keys):
    return [event["key"] for event in run.of("received") if event["key"] in keys]


def settle(cluster, topic, groups):
    """Returns the seconds that it took; raises when the groups don't settle."""
    started = time.monotonic()
    with Connection(cluster.namesrv.address) as namesrv:
        route = namesrv.route(topic)
    round_number = 0
    before = None  # The probes of the round before, if that one was fair.
    while time.monotonic() - started < SETTLE_SECONDS:
        round_number += 1
        keys = _send_probes(route, topic, f"probe-{time.monotonic_ns()}")
        arrived = holds_within(lambda: all(group.has(keys) for group in groups), ROUND_SECONDS)
        fair = arrived and all(group.is_fair(keys) for group in groups)
        # A member that shows its share of this round has shown all that it got in the last one.
        if fair and before and all(group.is_fair(before) for group in groups):
            return time.monotonic() - started
        before = keys if fair else None
        ended = [run.name for group in groups for run in group.members if run.ended]
        if ended:
            raise RuntimeError(f"ended while it should consume: {ended}")
        # Nothing tells the driver that a client has rebalanced, so it asks again in a moment.
        time.sleep(0.2)
    raise TimeoutError(f"no fair division of {topic} in {round_number} rounds")


def wait_committed(cluster, topic, group_name, group):
    """Waits until the group has committed all that is stored now.

    A client commits with its next pull or every five seconds. The Go client leaves the group before
    it commits, so without this wait a member that ends hands its queues over at an old offset.
    """
    ends = cluster.ends(topic)
    settle(cluster, topic, [group])  # One more message a queue ends the pulls that are held.
    deadline = time.monotonic() + COMMIT_SECONDS
    while True:
        committed = cluster.committed(group_name, topic)
        behind = {queue: (committed[queue], end) for queue, end in ends.items() if committed[queue] < end}
        if not behind:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"not committed by {group_name}, (committed, end): {behind}")
        time.sleep(0.05)


def _send_probes(route, topic, name):
    keys = set()
    for broker, (address, queue_count) in route.items():
        with Connection(address) as connection:
            for queue in range(queue_count):
                key = f"{name}-{broker}-{queue}"
                connection.send(topic, queue, b"probe", key)
                keys.add(key)
    return keys
