"""Messages are found by key, by unique id and by offset id.

Each client sends some, alone and in batches, over the queues of two brokers, and looks them all up
through the calls that its users have. Then a broker is killed and started again, and everything is
looked up once more: the index of the keys must know what it knew.
"""

from ..clients import Runs
from ..ledger import require

COUNT = 40
QUEUES = 4
FIND_SECONDS = 90


def run(report, cluster, clients, folder):
    """Each of these clients looks up what it has sent, before and after a SIGKILL."""
    with Runs(folder) as runs:
        senders = [Sender(cluster, client, runs) for client in clients]
        for sender in senders:
            report.check(f"{sender.name}: finds its messages by key and by both ids", sender.send_and_find)
        for broker in cluster.brokers.values():
            broker.kill()
            broker.start()
        for name in cluster.brokers:
            cluster.wait_broker(name)
        for sender in senders:
            report.check(f"{sender.name}: finds them after a SIGKILL of the brokers", sender.find_again)


class Sender:
    """What one client has sent, and how it looks for it."""

    def __init__(self, cluster, client, runs):
        self.name = client.name
        self._cluster, self._client, self._runs = cluster, client, runs
        self._topic = "keys-" + client.name.replace(".", "_")
        self._sent = []

    def send_and_find(self):
        """Sends one by one and in batches."""
        self._cluster.create_topic(self._topic, QUEUES)
        run = self._start("produce", "sends", prefix="k", modes="sync,batch", count=COUNT)
        self._sent = run.of("sent")
        require(len(self._sent) == 2 * COUNT, f"{len(self._sent)} sent: {run.of('failed')[-1:]}")
        return self._find("finds")

    def find_again(self):
        """The brokers have been killed since."""
        require(self._sent, "nothing was sent")
        self._cluster.wait_topic(self._topic)
        return self._find("finds-again")

    def _find(self, label):
        names = {by: [event[by] for event in self._sent] for by in ("key", "unique", "id")}
        # What each must lead to, and one of each that nothing has.
        names["key"].append("k-sync-9999999")
        # Java tries the address in any id first, and waits for it.
        names["unique"] = names["unique"][:: COUNT // 4]
        run = self._start("find", label, keys=names["key"], uniques=names["unique"], ids=names["id"])
        missed = [event for event in run.of("failed") if event["wanted"] != "k-sync-9999999"]
        require(not missed, f"{len(missed)} not found, as {missed[:1]}")
        found = {}
        for event in run.of("found"):
            found.setdefault((event["by"], event["wanted"]), []).append(event)
        for by, wanted in names.items():
            for sent in self._sent:
                if sent[by] in wanted:
                    self._check(by, sent, found.pop((by, sent[by]), []))
        require(not found, f"found without being sent: {found}")
        return f"{len(run.of('found'))} found"

    @staticmethod
    def _check(by, sent, found):
        require(len(found) == 1, f"{len(found)} found by {by} {sent[by]}: {found}")
        for name in ("key", "unique", "digest", "length", "queue", "offset"):
            require(found[0][name] == sent[name], f"{by} {sent[by]} leads to {found[0]}, sent was {sent}")

    def _start(self, verb, label, **options):
        lists = {name: ",".join(value) if isinstance(value, list) else value for name, value in options.items()}
        run = self._runs.start(
            self._client,
            verb,
            label,
            namesrv=self._cluster.namesrv.address,
            topic=self._topic,
            **lists,
        )
        run.wait_for("done", FIND_SECONDS)
        self._runs.finish([run])
        return run
