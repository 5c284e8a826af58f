"""The programs of the README, as they stand there: each sends ten messages and receives them."""

import os
import subprocess

from ..ledger import require

SECONDS = 60
MESSAGES = 10


def run(report, standalone, build, source, folder):
    """Runs the four programs against one `ringmq standalone`."""
    node_modules = f"{build}/node/node_modules"
    programs = {
        "Java": (["java", "-cp", f"{build}/java-4.9.8/*", source / "java" / "Example.java"], {}),
        "Go": ([f"{build}/go-example"], {}),
        "Node": (["node", source / "node" / "example.js"], {"NODE_PATH": node_modules}),
        "Python": ([f"{build}/python/bin/python", source / "python" / "example.py"], {}),
    }
    for language, (command, environment) in programs.items():
        report.check(
            f"the {language} example sends and receives at first try",
            lambda language=language, command=command, environment=environment: _check(
                [*command, standalone.namesrv.address],
                environment | {"HOME": str(folder)},
            ),
        )


def _check(command, environment):
    done = subprocess.run(
        [str(part) for part in command],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    require(done.returncode == 0, f"exit code {done.returncode}: {done.stdout[-500:]} {done.stderr[-1000:]}")
    lines = done.stdout.splitlines()
    sent = [line for line in lines if line.startswith("sent ")]
    received = sorted(line for line in lines if line.startswith("received "))
    require(len(sent) == MESSAGES, f"{len(sent)} sent: {done.stdout[-500:]}")
    require(received == [f"received hello {i}" for i in range(MESSAGES)], f"received {received}")
    return f"{len(sent)} sent, {len(received)} received"
