"""The largest body and the largest batch, and one byte more.

The broker's limit is on the body of a request: for a batch that is the sum of its items, each with
its lengths and properties (measured with Apache's 4.9.7; what they become in the log may be longer).
What an item costs beside its body is read off a small batch first, so the limit is met to the byte.
"""

from ..clients import Runs, wait_until
from ..ledger import Stored, check_clustering, check_sent, require
from ..remoting import MESSAGE_ILLEGAL
from ..settle import Group, settle

LIMIT = 4 << 20
BATCH = 40
ITEM_FIXED_LEN = 22  # Five integers and the length of the properties.
RECEIVE_SECONDS = 60


def run(report, cluster, client, folder):
    """A body and a batch of 4 MiB go through, to a consumer too; one byte more gets code 13."""
    topic = "sizes-" + client.name.replace(".", "_")
    cluster.create_topic(topic, 1)
    with Runs(folder) as runs:
        sizes = Sizes(cluster, client, topic, runs)
        report.check(f"{client.name}: a body of 4 MiB is stored", sizes.largest_body)
        report.check(f"{client.name}: a body of 4 MiB and a byte gets code 13", sizes.larger_body)
        report.check(f"{client.name}: a batch of 4 MiB is stored", sizes.largest_batch)
        report.check(f"{client.name}: a batch of 4 MiB and a byte gets code 13", sizes.larger_batch)
        report.check(f"{client.name}: it receives them as they were sent", sizes.receive)


class Sizes:
    """The sends of one client, and what they left behind."""

    def __init__(self, cluster, client, topic, runs):
        self._cluster, self._client, self._topic, self._runs = cluster, client, topic, runs
        self._batch_overhead = None
        self._accepted_count = 0

    def largest_body(self):
        return self._accepted("body", modes="sync", count=1, body=LIMIT)

    def larger_body(self):
        return self._refused("long-body", modes="sync", count=1, body=LIMIT + 1)

    def largest_batch(self):
        self._accepted("probe", modes="batch", count=BATCH, batch=BATCH, body=100)
        records = [record for _, record in self._stored().by_key.values() if record.key.startswith("probe-")]
        # Keys are equally long in every batch below, because the prefixes are.
        self._batch_overhead = sum(self._item_overhead(record) for record in records)
        return self._accepted("batch", modes="batch", count=BATCH, batch=BATCH, **self._bodies(LIMIT))

    def larger_batch(self):
        require(self._batch_overhead, "the batch of 4 MiB has to be measured first")
        return self._refused("large", modes="batch", count=BATCH, batch=BATCH, **self._bodies(LIMIT + 1))

    def receive(self):
        """A push consumer gets all of it from the start."""
        stored = self._stored()
        consumer = self._runs.start(
            self._client,
            "consume",
            "receives",
            namesrv=self._cluster.namesrv.address,
            topic=self._topic,
            group=f"{self._topic}-readers",
        )
        want = len(stored.by_key)
        require(want == 1 + 2 * BATCH, f"{want} messages are stored")
        wait_until(lambda: len(consumer.of("received")) >= want, RECEIVE_SECONDS, "all were received")
        settle(self._cluster, self._topic, [Group([consumer])])
        self._runs.finish([consumer])
        lengths = {event["length"] for event in consumer.of("received")}
        require(LIMIT in lengths, f"no body of 4 MiB came: {lengths}")
        complete = Stored(self._cluster.stored(self._topic))
        return check_clustering([consumer], complete, "", set(complete.by_key))

    def _item_overhead(self, record):
        """What an item of a batch has beside its body, from the properties that the client gave it."""
        own, pairs = ["KEYS", "UNIQ_KEY", "WAIT", "TAGS"], []
        for pair in record.properties.split("\x02"):
            name = pair.split("\x01")[0]
            if name in own:  # A second one is the batch's own, which the broker gives to each of its items.
                own.remove(name)
                pairs.append(pair)
        return ITEM_FIXED_LEN + len("\x02".join(pairs)) + self._client.ends_properties

    def _bodies(self, total):
        each, rest = divmod(total - self._batch_overhead, BATCH)
        return {"body": each, "last_body": each + rest}

    def _stored(self):
        return Stored(self._cluster.stored(self._topic, at_least=self._accepted_count))

    def _send(self, prefix, **options):
        run = self._runs.start(
            self._client,
            "produce",
            f"sends-{prefix}",
            namesrv=self._cluster.namesrv.address,
            topic=self._topic,
            prefix=prefix,
            bytes_max=2 * LIMIT,
            **options,
        )
        run.wait_for("done", 60)
        self._runs.finish([run])
        return run

    def _accepted(self, prefix, modes, count, **options):
        run = self._send(prefix, modes=modes, count=count, **options)
        self._accepted_count += count
        check_sent(run, modes, count, self._stored())
        return f"{sum(event['length'] for event in run.of('sent'))} bytes of body"

    def _refused(self, prefix, modes, count, **options):
        run = self._send(prefix, modes=modes, count=count, **options)
        codes = {event["code"] for event in run.of("failed")}
        require(not run.of("sent"), "it was accepted")
        require(codes == {MESSAGE_ILLEGAL}, f"codes {codes}: {run.of('failed')[0]['error']}")
        require(not self._stored().keys(prefix + "-"), "it was refused and is stored")
