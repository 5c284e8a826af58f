"""Brings the published clients onto the machine and builds the runners.

Everything goes to one build folder outside version control. A stamp beside each result holds a
digest of its inputs, so a second run installs nothing.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

JAVA_VERSIONS = ("4.9.8", "5.5.0")
TOOLS = ("java", "javac", "mvn", "go", "node", "npm")


def require_tools(names):
    """Fails when a tool is missing: a client that can't run is a failure, never skipped."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        raise SystemExit(f"tests/interop needs {', '.join(missing)}; run tests/interop/run.sh, which installs them")


def install(source, build):
    """Installs all clients and builds their runners."""
    require_tools(TOOLS)
    build.mkdir(parents=True, exist_ok=True)
    clients = source / "clients"
    for version in JAVA_VERSIONS:
        pom, runner = clients / "java" / "pom.xml", clients / "java" / "Runner.java"
        jars, classes = build / f"java-{version}", build / f"classes-{version}"
        _once(jars, [pom], lambda pom=pom, jars=jars, version=version: _maven(pom, jars, version))
        _once(classes, [runner], lambda jars=jars, classes=classes: _javac(runner, jars, classes))
    _go(clients / "go", build / "go-runner")
    _go(source / "examples" / "go", build / "go-example")
    package = clients / "node" / "package.json"
    _once(build / "node", [package], lambda: _npm(package, build / "node"))
    requirements = clients / "python" / "requirements.txt"
    _once(build / "python", [requirements], lambda: _pip(requirements, build / "python"))


def apache(source, build, name):
    """Installs the Apache servers of `apache-VERSION`; returns the folder of their jars."""
    pom, jars = source / "peers" / "apache" / "pom.xml", build / name
    _once(jars, [pom], lambda: _maven(pom, jars, name.removeprefix("apache-")))
    return jars


def ringmq(root, target):
    """Builds the binary as a user would get it; returns its path."""
    _run(["cargo", "build", "--release", "--quiet", "-p", "ringmq"], root)
    return target / "release" / "ringmq"


def rust(root, target):
    """Builds the Rust runner; returns its path."""
    _run(["cargo", "build", "--quiet", "-p", "ringmq-tests", "--bin", "interop-rust"], root)
    return target / "debug" / "interop-rust"


def _once(result, inputs, make):
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in inputs)).hexdigest()
    stamp = result.with_name(result.name + ".stamp")
    if result.exists() and stamp.exists() and stamp.read_text() == digest:
        return
    print(f"installing {result.name}", flush=True)
    make()
    stamp.write_text(digest)


def _run(command, folder=None):
    subprocess.run([str(part) for part in command], cwd=folder, check=True, stdin=subprocess.DEVNULL)


def _maven(pom, jars, version):
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}", f"-Drocketmq.version={version}"]
    _run(["mvn", "-q", "-B", "-f", pom, *goal])


def _javac(runner, jars, classes):
    classes.mkdir(exist_ok=True)
    _run(["javac", "-nowarn", "-d", classes, "-cp", f"{jars}/*", runner])


def _go(folder, binary):
    inputs = [folder / name for name in ("go.mod", "go.sum", "main.go")]
    _once(binary, inputs, lambda: _run(["go", "build", "-o", binary, "."], folder))


def _npm(package, folder):
    folder.mkdir(exist_ok=True)
    shutil.copy(package, folder)
    _run(["npm", "install", "--silent", "--no-package-lock", "--no-audit", "--no-fund"], folder)


def _pip(requirements, folder):
    _run([sys.executable, "-m", "venv", "--clear", folder])
    _run([Path(folder) / "bin" / "pip", "install", "-q", "--disable-pip-version-check", "-r", requirements])
