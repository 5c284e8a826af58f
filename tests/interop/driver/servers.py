"""Name servers and brokers: RingMQ's own, or the real Apache ones as a check of the tests.

A server process is ready when its port answers, and is always ended with the run. Ports are taken
from 24100 upwards, loopback only.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from .remoting import Connection

READY_SECONDS = 60
STOP_SECONDS = 30
VISIBLE_SECONDS = 5
PORT_FIRST, PORT_LAST = 24100, 24900

_ports = iter(range(PORT_FIRST, PORT_LAST, 10))


def free_port():
    """A port that is free, with the two below it and the one above (Apache opens those too)."""
    for port in _ports:
        if all(_is_free(candidate) for candidate in range(port - 2, port + 2)):
            return port
    raise RuntimeError("no free port left")


def _is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@dataclass
class Server:
    """One server process, which can be killed and started again on the same data."""

    name: str
    command: list
    address: str
    log: Path
    environment: dict = field(default_factory=dict)
    process: subprocess.Popen = None

    def start(self):
        """Starts the process without waiting for it."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | self.environment,
            )

    def kill(self):
        """SIGKILL, as a crash."""
        self.process.kill()
        self.process.wait()

    def stop(self):
        """SIGTERM; SIGKILL if that is not obeyed. Returns whether it was."""
        if self.process is None or self.process.poll() is not None:
            return True
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True

    def wait_ready(self, is_ready):
        """Waits until `is_ready(connection)` holds; fails at once if the process ends."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}; see {self.log}")
            try:
                with Connection(self.address, 2.0) as connection:
                    if is_ready(connection):
                        return
            except Exception as error:  # Not up yet: refused, reset, or an error code.
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name} is not ready: {error}; see {self.log}") from error
            time.sleep(0.05)


class Cluster:
    """A name server and some brokers that are registered with it."""

    def __init__(self, namesrv, brokers):
        self.namesrv, self.brokers = namesrv, brokers

    def __enter__(self):
        try:
            self.namesrv.start()
            self.namesrv.wait_ready(lambda _: True)
            for broker in self.brokers.values():
                broker.start()
            for name in self.brokers:
                self.wait_broker(name)
        except BaseException:
            self.__exit__("it did not start")
            raise
        return self

    def __exit__(self, failure=None, *_):
        _stop_all([*self.brokers.values(), self.namesrv], failure)

    def wait_broker(self, name):
        """Waits until the broker answers and the name server gives its address to clients."""
        broker = self.brokers[name]
        broker.wait_ready(lambda connection: connection.max_offset("TBW102", 0) >= 0)
        self.namesrv.wait_ready(lambda connection: name in connection.route("TBW102"))

    def create_topic(self, topic, queue_count):
        """Creates the topic on every broker and waits until the route has all of them."""
        for broker in self.brokers.values():
            with Connection(broker.address) as connection:
                connection.create_topic(topic, queue_count)
        self.wait_topic(topic)

    def wait_topic(self, topic):
        """Waits until the name server's route of the topic names every broker."""
        self.namesrv.wait_ready(lambda connection: set(connection.route(topic)) == set(self.brokers))

    def ends(self, topic):
        """The offsets that the next messages will get: `{(broker, queue): offset}`."""
        return self._each_queue(topic, lambda connection, queue: connection.max_offset(topic, queue))

    def committed(self, group, topic):
        """What a group has committed: `{(broker, queue): offset}`."""
        return self._each_queue(topic, lambda connection, queue: connection.committed(group, topic, queue))

    def stored(self, topic, at_least=0):
        """What the brokers have stored for a topic: `{(broker, queue): [Record]}`.

        Apache's broker acknowledges a message before a pull can see it, so this waits a while for
        `at_least` messages; with fewer it returns what is there, and the caller tells what is missing.
        """
        deadline = time.monotonic() + VISIBLE_SECONDS
        while True:
            stored = self._each_queue(topic, lambda connection, queue: connection.pull_all(topic, queue))
            if sum(map(len, stored.values())) >= at_least or time.monotonic() > deadline:
                return stored
            time.sleep(0.02)

    def _each_queue(self, topic, ask):
        with Connection(self.namesrv.address) as namesrv:
            route = namesrv.route(topic)
        answers = {}
        for name, (address, queue_count) in route.items():
            with Connection(address) as connection:
                for queue in range(queue_count):
                    answers[name, queue] = ask(connection, queue)
        return answers


def _stop_all(servers, failure):
    """Ends servers; complains about one that SIGTERM did not end, unless there is a failure already."""
    stubborn = [server.name for server in servers if not server.stop()]
    if stubborn and failure is None:
        raise RuntimeError(f"SIGTERM did not end {', '.join(stubborn)} within {STOP_SECONDS} s")


class RingMq:
    """Clusters of the `ringmq` binary."""

    name = "ringmq"
    restart_seconds_max = 1.0

    def __init__(self, binary):
        self._binary = str(binary)

    def cluster(self, folder, broker_names):
        """A `ringmq namesrv` and one `ringmq broker` for each name."""
        namesrv_address = f"127.0.0.1:{free_port()}"
        namesrv = Server(
            "namesrv",
            [self._binary, "namesrv", "--namesrv-listen", namesrv_address, "--data", str(folder / "namesrv")],
            namesrv_address,
            folder / "namesrv.log",
        )
        brokers = {}
        for name in broker_names:
            address = f"127.0.0.1:{free_port()}"
            conf = folder / f"{name}.conf"
            conf.write_text(f"brokerName={name}\nbrokerClusterName=DefaultCluster\nbrokerId=0\n")
            command = [self._binary, "broker", "-c", str(conf), "-n", namesrv_address]
            command += ["--listen", address, "--data", str(folder / name)]
            brokers[name] = Server(name, command, address, folder / f"{name}.log")
        return Cluster(namesrv, brokers)

    def standalone(self, folder):
        """`ringmq standalone`: both in one process."""
        address, namesrv_address = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        command = [self._binary, "standalone", "--data", str(folder / "data")]
        command += ["--listen", address, "--namesrv-listen", namesrv_address]
        return Standalone(Server("standalone", command, namesrv_address, folder / "standalone.log"))


class Standalone:
    """A process that is name server and broker."""

    def __init__(self, server):
        self._server = server
        self.namesrv = server

    def __enter__(self):
        self._server.start()
        self._server.wait_ready(lambda connection: connection.route("TBW102"))
        return self

    def __exit__(self, failure=None, *_):
        _stop_all([self._server], failure)


class Apache:
    """Clusters of the published Apache servers, which the tests must pass against as well."""

    names = ("apache-4.9.7", "apache-5.5.0")
    restart_seconds_max = None  # It takes seconds; the run prints how many.

    def __init__(self, name, jars):
        self.name, self._jars = name, jars

    def cluster(self, folder, broker_names):
        """A name server and one broker for each name."""
        self._write_logback(folder)
        namesrv_port = free_port()
        namesrv_address = f"127.0.0.1:{namesrv_port}"
        namesrv = self._server(folder, "namesrv", "namesrv.NamesrvStartup", namesrv_port, {}, "-Xmx256m")
        brokers = {}
        for name in broker_names:
            data = folder / f"{name}-data"
            settings = {
                "namesrvAddr": namesrv_address,
                "brokerIP1": "127.0.0.1",
                "brokerName": name,
                "brokerClusterName": "DefaultCluster",
                "storePathRootDir": data,
                "storePathCommitLog": data / "commitlog",
                "flushDiskType": "ASYNC_FLUSH",
                "mappedFileSizeCommitLog": 64 << 20,
                "diskMaxUsedSpaceRatio": 99,
                # A cold JVM on a shared machine answers "busy" with the default of 200 ms.
                "waitTimeMillsInSendQueue": 10_000,
                "osPageCacheBusyTimeOutMills": 10_000,
            }
            brokers[name] = self._server(folder, name, "broker.BrokerStartup", free_port(), settings, "-Xmx1g")
        return Cluster(namesrv, brokers)

    def standalone(self, folder):
        """The nearest thing to `ringmq standalone`."""
        return self.cluster(folder, ["broker-a"])

    def _server(self, folder, name, main_class, port, settings, heap):
        conf = folder / f"{name}.properties"
        lines = {"listenPort": port, **settings}
        conf.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        opens = ["sun.nio.ch", "java.nio", "java.lang", "jdk.internal.ref", "java.util"]
        command = ["java", heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["--add-exports=java.base/sun.nio.ch=ALL-UNNAMED"]
        command += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in opens]
        command += [f"-Duser.home={folder}", "-cp", f"{self._jars}/*"]
        command += [f"org.apache.rocketmq.{main_class}", "-c", str(conf)]
        environment = {"ROCKETMQ_HOME": str(folder)}
        return Server(name, command, f"127.0.0.1:{port}", folder / f"{name}.log", environment)

    @staticmethod
    def _write_logback(folder):
        (folder / "conf").mkdir(exist_ok=True)
        for server in ("namesrv", "broker"):
            # That of 4.9, and that of 5.x.
            for name in (f"logback_{server}.xml", f"rmq.{server}.logback.xml"):
                (folder / "conf" / name).write_text('<configuration><root level="OFF"/></configuration>\n')


def fresh_folder(parent, name):
    """An empty folder for one scenario's servers."""
    folder = parent / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
