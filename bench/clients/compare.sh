#!/usr/bin/env bash
# One producer with default settings: this client, and the Java clients, against the same RingMQ.
#
#   compare.sh RINGMQ THROUGHPUT JARS_4.9.8 JARS_5.5.0 [SECONDS]
#
# RINGMQ is the server's binary, THROUGHPUT that of the client's example; JARS are folders of the Java
# clients' jars (`mvn dependency:copy-dependencies`). Each case runs alone, the clients in turn.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ringmq=$1 rust=$2 java498=$3 java550=$4 seconds=${5:-5}
port=${PORT:-27400}
data=$(mktemp -d "${DATA:-/tmp}/clients.XXXXXX")
"$ringmq" standalone --data "$data" --listen "127.0.0.1:$((port + 11))" \
    --namesrv-listen "127.0.0.1:$port" ${RINGMQ_ARGS:-} >"$data.log" 2>&1 &
server=$!
trap 'kill $server; wait $server || true; rm -rf "$data" "$data.log"' EXIT
until (exec 3<>"/dev/tcp/127.0.0.1/$((port + 11))") 2>/dev/null; do sleep 0.1; done
for in_flight in 1 64 1024; do
    echo "rust        $("$rust" "127.0.0.1:$port" $in_flight "$seconds" 1024)"
    echo "rust, batch $("$rust" "127.0.0.1:$port" $in_flight "$seconds" 1024 batch)"
    for jars in "$java498" "$java550"; do
        echo "java ${jars##*/} $(java -Xmx512m -cp "$jars/*" "$here/Throughput.java" \
            "127.0.0.1:$port" $in_flight "$seconds" 1024 2>/dev/null)"
    done
done
