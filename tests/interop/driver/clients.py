"""The clients under test, and the processes that run them.

A runner prints one JSON object a line; `Run` collects them as they come and lets the driver wait
for what it needs instead of for time to pass. A consumer ends when its standard input does.
"""

import json
import os
import subprocess
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

# Both wake-ups and the events of every process hang on this one condition, so that the driver can
# wait for something that several processes bring about together.
_changed = threading.Condition()


def wait_until(predicate, seconds, what):
    """Waits until `predicate()` holds, which is asked again after each event of any process.

    `what` names it for the error text; a callable is asked when the time is over.
    """
    if not holds_within(predicate, seconds):
        raise TimeoutError(f"not within {seconds} s: {what() if callable(what) else what}")


def holds_within(predicate, seconds):
    """Whether `predicate()` holds within some seconds."""
    deadline = time.monotonic() + seconds
    with _changed:
        while not predicate():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            _changed.wait(left)
    return True


@dataclass(frozen=True)
class Client:
    """A published client, in one version and header encoding, with what it can do."""

    name: str
    command: tuple
    environment: dict = field(default_factory=dict, hash=False)
    options: tuple = ()
    modes: tuple = ("sync", "async", "oneway", "batch")
    creates_topics: bool = False
    auto_create_options: tuple = ()
    ends_properties: bool = False  # Whether the last property is followed by a separator.

    def run(self, verb, folder, label, **options):
        """Starts the runner; options become `--name value`, underscores become hyphens."""
        command = [*self.command, verb, *self.options]
        for name, value in options.items():
            command += ["--" + name.replace("_", "-"), str(value)]
        return Run(f"{self.name} {label}", command, folder, self.environment)


class Run:
    """One runner process and the events it has printed."""

    def __init__(self, name, command, folder, environment):
        self.name = name
        self.events = []
        self.counts = Counter()
        self.ended = False
        home = folder / name.replace(" ", "-")
        home.mkdir(parents=True, exist_ok=True)
        self.log = home / "stderr.log"
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [part.replace("{home}", str(home)) for part in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=home,
                env=os.environ | {"HOME": str(home)} | environment,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            try:
                event = json.loads(line)
            except ValueError:  # Some clients log to standard output.
                with open(self.log, "ab") as log:
                    log.write(line)
                continue
            with _changed:
                self.events.append(event)
                self.counts[event["event"]] += 1
                _changed.notify_all()
        with _changed:
            self.ended = True
            _changed.notify_all()

    def of(self, event):
        """The events of one kind so far."""
        return [entry for entry in list(self.events) if entry["event"] == event]

    def wait_for(self, event, seconds):
        """Waits for the first event of a kind; fails at once if the process ends without it."""
        wait_until(lambda: self.of(event) or self.ended, seconds, f"{event} from {self.name}")
        if not self.of(event):
            raise RuntimeError(f"{self.name} ended without '{event}'; see {self.log}")

    def tell(self, text):
        """Writes to the runner's standard input."""
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()

    def close_input(self):
        """Tells the runner to finish."""
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # It has ended already.

    def finish(self, seconds=30):
        """Ends the runner in good order and returns its exit code."""
        self.close_input()
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"{self.name} did not end; see {self.log}") from None
        self._reader.join(seconds)
        return code

    def kill(self):
        """Ends the runner whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Runs:
    """The runner processes of one scenario; none outlives it."""

    def __init__(self, folder):
        self._folder = folder
        self._all = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for run in self._all:
            run.kill()

    def start(self, client, verb, label, **options):
        """Starts a runner that `__exit__` will end if nothing else does."""
        run = client.run(verb, self._folder, label, **options)
        self._all.append(run)
        return run

    @staticmethod
    def finish(runs):
        """Ends runners in good order, one after the other.

        The C++ client hangs now and then when its group changes while it leaves, so it goes first.
        """
        for run in sorted(runs, key=lambda run: not run.name.startswith("cpp")):
            code = run.finish()
            if code != 0:
                raise RuntimeError(f"{run.name} ended with {code}; see {run.log}")


def java(build, version, encoding):
    """The Java client in one version, with JSON or ROCKETMQ headers."""
    command = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
    command += [f"-Drocketmq.serialize.type={encoding}", "-Drocketmq.client.logLevel=ERROR", "-Duser.home={home}"]
    command += ["-cp", f"{build}/classes-{version}:{build}/java-{version}/*", "Runner"]
    return Client(
        name=f"java-{version}-{encoding.lower()}",
        command=tuple(command),
        creates_topics=True,
        ends_properties=version.startswith("5"),
    )


def go(build, encoding):
    """The Go client v2."""
    return Client(
        name=f"go-v2-{encoding}",
        command=(f"{build}/go-runner",),
        options=("--encoding", encoding, "--log", "client.log"),
        creates_topics=True,
        ends_properties=True,
    )


def node(build, source):
    """The Node client `ali-ons`."""
    return Client(
        name="node-ali-ons",
        command=("node", str(source / "node" / "runner.js")),
        environment={"INTEROP_NODE_PACKAGES": f"{build}/node"},
        modes=("sync", "async"),
        auto_create_options=(("create", "true"),),
    )


def cpp(build, source):
    """The C++ client through its Python package.

    It sends a batch as request 10, which a broker stores as one message (so does Apache's), so batch
    is nothing that this client can do.
    """
    return Client(
        name="cpp-python",
        command=(f"{build}/python/bin/python", str(source / "python" / "runner.py")),
        modes=("sync", "async", "oneway"),
    )


def rust(binary):
    """This project's own client; its runner only consumes."""
    return Client(name="rust", command=(str(binary),), modes=())


def every_client(build, source):
    """All of them, each in the encodings that it can write."""
    return [
        java(build, "4.9.8", "JSON"),
        java(build, "4.9.8", "ROCKETMQ"),
        java(build, "5.5.0", "JSON"),
        java(build, "5.5.0", "ROCKETMQ"),
        go(build, "json"),
        go(build, "rocketmq"),
        node(build, source),
        cpp(build, source),
    ]
