#!/usr/bin/env bash
# Runs the client's test suite against Apache RocketMQ, as published: VERSION is 4.9.7 or 5.5.0.
#
#   tests/client-suite.sh VERSION [NAME]      (only cases whose name contains NAME)
#
# Needs java and mvn; tests/interop/run.sh installs them. Against RingMQ the suite runs with
# `cargo test -p ringmq-tests --test client_suite`.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=${1:?which version: 4.9.7 or 5.5.0}
shift
apache=$here/../bench/peers/apache.sh
dir=$(mktemp -d "${TMPDIR:-/tmp}/client-suite.XXXXXX")
trap '"$apache" stop "$dir"; rm -rf "$dir"' EXIT

# The kernel gives ports that are free now; the broker also takes the two beside its own.
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
namesrv_port=$(free_port)
RINGMQ_PEER_HEAP=1g RINGMQ_PEER_CONF='enablePropertyFilter=true
waitTimeMillsInSendQueue=10000' \
    "$apache" start "$version" "$dir" "$namesrv_port" "$(free_port)"
cd "$here/.."
RINGMQ_TEST_NAMESRV=127.0.0.1:$namesrv_port RINGMQ_TEST_EXPECT=apache-$version \
    cargo test --locked -p ringmq-tests --test client_suite -- "$@"
