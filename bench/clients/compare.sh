#!/usr/bin/env bash
# One producer and one push consumer with default settings: this client, the Java clients and the
# rocketmq-client-rust crate, in turn, against the same RingMQ.
#
#   compare.sh RINGMQ EXAMPLES JARS_4.9.8 JARS_5.5.0 [SECONDS]
#
# RINGMQ is the server's binary, EXAMPLES the folder of the client's examples; JARS are folders of the
# Java clients' jars (`mvn dependency:copy-dependencies`). RUST_PEER is the binary of the program in
# rocketmq-rust beside this script (`cargo build --release`); without it that client is left out. Each
# case runs alone. CASES chooses from "1 64 1024 consume"; PORT and DATA say where the server listens and
# stores, RINGMQ_ARGS what else it is started with.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ringmq=$1 examples=$2 java498=$3 java550=$4 seconds=${5:-5}
port=${PORT:-27400}
namesrv=127.0.0.1:$port
data=$(mktemp -d "${DATA:-/tmp}/clients.XXXXXX")
"$ringmq" standalone --data "$data" --listen "127.0.0.1:$((port + 11))" \
    --namesrv-listen "$namesrv" ${RINGMQ_ARGS:-} >"$data.log" 2>&1 &
server=$!
trap 'kill $server; wait $server || true; rm -rf "$data" "$data.log"' EXIT
for listening in "$((port + 11))" "$port"; do
    until (exec 3<>"/dev/tcp/127.0.0.1/$listening") 2>/dev/null; do sleep 0.1; done
done

show() { # name, command...
    local name=$1
    shift
    printf '%-22s %s\n' "$name" "$("$@" 2>/dev/null | tr '\n' ' ' || echo failed)"
}

java_client() { # jars, arguments...
    local jars=$1
    shift
    java -Xmx512m -cp "$jars/*" "$here/Throughput.java" "$@"
}

rust_peer() { # arguments...
    if [[ -n ${RUST_PEER:-} ]]; then
        show "rocketmq-client-rust" "$RUST_PEER" "$@"
    fi
}

# A new store prepares its files first.
"$examples/throughput" "$namesrv" 1024 3 1024 batch >/dev/null

for case in ${CASES:-1 64 1024 consume}; do
    if [[ $case == consume ]]; then
        # More than the fastest one reads meanwhile.
        show "backlog" "$examples/throughput" "$namesrv" 1024 "${BACKLOG_SECONDS:-12}" 1024 batch
        show "ringmq-client" "$examples/consume_throughput" "$namesrv" Throughput "${CONSUME_SECONDS:-2}"
        rust_peer consume "$namesrv" Throughput "$seconds"
        show "java 4.9.8" java_client "$java498" consume "$namesrv" Throughput "$seconds"
        show "java 5.5.0" java_client "$java550" consume "$namesrv" Throughput "$seconds"
        continue
    fi
    show "ringmq-client" "$examples/throughput" "$namesrv" "$case" "$seconds" 1024
    show "ringmq-client, batch" "$examples/throughput" "$namesrv" "$case" "$seconds" 1024 batch
    rust_peer produce "$namesrv" "$case" "$seconds" 1024
    show "java 4.9.8" java_client "$java498" produce "$namesrv" "$case" "$seconds" 1024
    show "java 5.5.0" java_client "$java550" produce "$namesrv" "$case" "$seconds" 1024
done
