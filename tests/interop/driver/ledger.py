"""What was sent, stored and received, and whether the three agree.

The stored messages, which the driver pulls itself, are the reference: a send must be stored where
its acknowledgement said, and a consumer must be given what is stored, once and in order.
"""

from collections import Counter, defaultdict


def require(condition, text):
    """Raises with `text` unless the condition holds; unlike `assert` it can't be switched off."""
    if not condition:
        raise AssertionError(text)


def some(items):
    """At most five of many, for an error text."""
    items = sorted(items)
    return f"{len(items)}: {items[:5]}"


class Stored:
    """The messages of a topic by key, each with the broker that holds it."""

    def __init__(self, records_by_queue):
        self.queues = records_by_queue
        self.by_key = {}
        for (broker, queue), records in records_by_queue.items():
            for position, record in enumerate(records):
                require(record.offset == position, f"{broker} queue {queue}: {record.offset} follows {position - 1}")
                require(record.queue == queue, f"{broker} queue {queue}: a record says queue {record.queue}")
                require(record.key not in self.by_key, f"{record.key} is stored twice")
                self.by_key[record.key] = (broker, record)

    def keys(self, prefix, tags=None):
        """Keys that start with `prefix` and, if given, have one of `tags`."""
        return {
            key
            for key, (_, record) in self.by_key.items()
            if key.startswith(prefix) and (tags is None or record.tag in tags)
        }


def check_sent(run, mode, count, stored):
    """Every message of one mode was accepted and is stored where the acknowledgement said."""
    failed = [event for event in run.of("failed") if event["mode"] == mode]
    require(not failed, f"refused: {failed[:2]}")
    sent = [event for event in run.of("sent") if event["mode"] == mode]
    require(len(sent) == count, f"{len(sent)} of {count} sent")
    for event in sent:
        require(event["key"] in stored.by_key, f"{event['key']} was sent and is not stored")
        check_position(event, *stored.by_key[event["key"]])
        require(mode == "oneway" or event["status"] == "SEND_OK", f"{event['key']}: {event.get('status')}")
    if mode == "sync":
        check_send_order(sent, stored)
    return f"{len(sent)} messages"


def check_position(event, broker, record):
    """A send result or a received message agrees with what is stored, in all that it names."""
    known = {"broker": broker, "queue": record.queue, "offset": record.offset, "digest": record.digest}
    for name, want in known.items():
        got = event.get(name, want)
        require(got == want, f"{event['key']}: {name} {got}, stored {want}")


def check_send_order(sent, stored):
    """Messages that were sent one after the other lie in that order in their queues."""
    latest = {}
    for event in sent:
        broker, record = stored.by_key[event["key"]]
        queue = (broker, record.queue)
        require(latest.get(queue, -1) < record.offset, f"{event['key']} was stored before its predecessor")
        latest[queue] = record.offset


def check_member(run, stored, prefix):
    """One consumer: messages as stored, in order within each queue. Returns their keys in order."""
    keys, latest = [], {}
    for event in run.of("received"):
        if not event["key"].startswith(prefix):
            continue
        require(event["key"] in stored.by_key, f"{event['key']} was received and is not stored")
        broker, record = stored.by_key[event["key"]]
        check_position(event, broker, record)
        require(event["tag"] == record.tag, f"{event['key']}: tag {event['tag']}")
        queue = (broker, record.queue)
        previous = latest.get(queue, -1)
        require(previous != record.offset, f"{run.name} got {event['key']} twice")
        require(previous < record.offset, f"{run.name}: {event['key']} came after offset {previous} of its queue")
        latest[queue] = record.offset
        keys.append(event["key"])
    return keys


def check_exactly(got, want, who):
    """`got` has each of `want` once, and nothing else."""
    counts = Counter(got)
    twice = [key for key, count in counts.items() if count > 1]
    require(not twice, f"{who}: more than once {some(twice)}")
    require(not want - set(counts), f"{who}: lost {some(want - set(counts))}")
    require(not set(counts) - want, f"{who}: not expected {some(set(counts) - want)}")


def check_clustering(members, stored, prefix, want):
    """A group of members shares the messages: each once, each queue with one owner."""
    everything, owners = [], defaultdict(set)
    for run in members:
        keys = check_member(run, stored, prefix)
        everything += keys
        for key in keys:
            broker, record = stored.by_key[key]
            owners[broker, record.queue].add(run.name)
    check_exactly(everything, want, "the group")
    shared = {queue: names for queue, names in owners.items() if len(names) > 1}
    require(not shared, f"queues with several owners: {shared}")
    idle = {run.name for run in members} - {name for names in owners.values() for name in names}
    require(not idle, f"owned no queue: {idle}")
    return f"{len(everything)} messages, {len(owners)} queues, {len(members)} members"


def check_broadcasting(members, stored, prefix, want):
    """Each member gets every message."""
    for run in members:
        check_exactly(check_member(run, stored, prefix), want, run.name)
    return f"{len(want)} messages to each of {len(members)} members"
