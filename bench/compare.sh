#!/usr/bin/env bash
# Runs RingMQ and Apache RocketMQ through the same cases with the same generator, interleaved, and
# sets the medians against the project's bars.
#
#   bench/compare.sh [--quick] [--limits] [--reps N] [--seconds S] [--cases "32x1 32x64 ..."]
#                    [--ringmq PATH] [--apache VERSION] [--flush ASYNC_FLUSH|SYNC_FLUSH]
#                    [--only ringmq|apache] [--work DIR] [--out PREFIX]
#
# Within a repetition Apache stays up and warm; while RingMQ has its turn it is stopped (SIGSTOP),
# its pages synced. RingMQ starts afresh, on an empty folder, for every case. Every run has a byte
# budget, and all data is deleted between runs and repetitions. --limits runs, with RingMQ alone,
# the cases about thousands of idle connections, stalled consumers and a million damaged frames.
# Needs 25 GB of free disk, Java 17 and Maven (for Apache), and the ports 23876, 23909 to 23912,
# 23976 and 23981.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
bench=$target/release/ringmq-bench
ringmq=$target/release/ringmq
reps=3 seconds=8 backlog=1000000 apache=4.9.7 flush=ASYNC_FLUSH only= work= out=
cases="32x1 32x8 32x64 batch32 pull open30k 1x1 e2e e2e-tag durable"
limits="idle stall fuzz"
fuzz_frames=1000000
# Bodies of one run at most: 6 GB is 2.5 s of the device's speed, the warm-up's quarter included.
bytes_max=6000000000
free_gb_min=25
apache_namesrv=127.0.0.1:23876 apache_broker=127.0.0.1:23911
ringmq_namesrv=127.0.0.1:23976 ringmq_broker=127.0.0.1:23981

while (($#)); do
    case $1 in
    --quick) reps=1 seconds=3 backlog=200000 bytes_max=2000000000 fuzz_frames=100000 && shift ;;
    --limits) cases=$limits only=ringmq reps=1 && shift ;;
    --reps) reps=$2 && shift 2 ;;
    --seconds) seconds=$2 && shift 2 ;;
    --cases) cases=$2 && shift 2 ;;
    --ringmq) ringmq=$2 && shift 2 ;;
    --apache) apache=$2 && shift 2 ;;
    --flush) flush=$2 && shift 2 ;;
    --only) only=$2 && shift 2 ;;
    --work) work=$2 && shift 2 ;;
    --out) out=$2 && shift 2 ;;
    *) sed -n '5,7s/^# *//p' "${BASH_SOURCE[0]}" >&2 && exit 2 ;;
    esac
done

work=${work:-$(mktemp -d "${TMPDIR:-/tmp}/ringmq-compare.XXXXXX")}
out=${out:-$here/results/compare-$(date +%Y%m%d-%H%M)}
results=$work/results
mkdir -p "$results" "$(dirname "$out")"
ringmq_pid=

free_gb=$(df --output=avail -B1G "$work" | tail -n 1)
if ((free_gb < free_gb_min)); then
    echo "compare.sh: $work has $free_gb GB free, $free_gb_min are needed" >&2
    exit 1
fi

cleanup() {
    [[ -n $ringmq_pid ]] && kill -KILL "$ringmq_pid" 2>/dev/null || true
    "$here/peers/apache.sh" stop "$work/apache" || true
    rm -rf "$work/apache" "$work/ringmq"
}
trap cleanup EXIT

log() { echo "$(date +%T) $*"; }

await_port() {
    local addr=$1
    for ((i = 0; i < 150; i++)); do
        (exec 3<>"/dev/tcp/${addr%:*}/${addr#*:}") 2>/dev/null && return
        kill -0 "$ringmq_pid" 2>/dev/null || break
        sleep 0.1
    done
    echo "compare.sh: RingMQ did not start:" >&2
    tail -n 20 "$work/ringmq.out" >&2
    exit 1
}

start_ringmq() {
    rm -rf "$work/ringmq"
    # Defaults but for the addresses and the folder, so that it can run beside the other.
    # shellcheck disable=SC2086
    "$ringmq" standalone --data "$work/ringmq" --listen "$ringmq_broker" \
        --namesrv-listen "$ringmq_namesrv" ${RINGMQ_ARGS:-} >"$work/ringmq.out" 2>&1 </dev/null &
    ringmq_pid=$!
    await_port "$ringmq_broker"
}

stop_ringmq() {
    kill -TERM "$ringmq_pid"
    for ((i = 0; i < 100; i++)); do
        kill -0 "$ringmq_pid" 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL "$ringmq_pid" 2>/dev/null || true
    wait "$ringmq_pid" 2>/dev/null || true
    ringmq_pid=
    rm -rf "$work/ringmq"
}

start_apache() {
    rm -rf "$work/apache"
    "$here/peers/apache.sh" start "$apache" "$work/apache" "${apache_namesrv#*:}" \
        "${apache_broker#*:}" "$flush"
    log "warming Apache up"
    "$bench" produce --broker "$apache_broker" --topic warm --seconds 15 --warmup 0 \
        --bytes-max 2000000000 >/dev/null
    "$bench" pull --broker "$apache_broker" --topic warm >/dev/null
}

# One case against one broker: address, case, result file.
measure() {
    local broker=$1 case=$2 json=$3 warmup=3
    local common=(--broker "$broker" --topic "bench-$case" --json "$json")
    local load=("${common[@]}" --seconds "$seconds" --warmup "$warmup" --bytes-max "$bytes_max")
    # With few in flight a lone connection's rate wavers by half; with 64 a tenth can be told.
    local busy=("${common[@]}" --seconds "$seconds" --in-flight 64 --bytes-max $((bytes_max / 6)))
    case $case in
    1x1) "$bench" produce "${load[@]}" --connections 1 --in-flight 1 ;;
    32x1) "$bench" produce "${load[@]}" --in-flight 1 ;;
    32x8) "$bench" produce "${load[@]}" --in-flight 8 ;;
    32x64) "$bench" produce "${load[@]}" --in-flight 64 ;;
    batch32) "$bench" produce "${load[@]}" --in-flight 4 --batch 32 ;;
    open30k) "$bench" produce "${load[@]}" --rate 30000 ;;
    pull)
        "$bench" produce --broker "$broker" --topic "bench-$case" --messages "$backlog" \
            --warmup 0 --seconds 120 >/dev/null &&
            "$bench" pull "${common[@]}" --seconds "$seconds" --warmup 10
        ;;
    e2e) "$bench" e2e "${common[@]}" --seconds "$seconds" --warmup "$warmup" ;;
    e2e-tag) "$bench" e2e "${common[@]}" --tag TagA --seconds "$seconds" --warmup "$warmup" ;;
    durable)
        "$bench" produce "${common[@]}" --queues 1 --connections 1 --in-flight 1 --body 200 \
            --messages 10000 --warmup 0 --seconds 60 --log-span
        ;;
    idle) "$bench" idle "${busy[@]}" --idle 5000 ;;
    stall) "$bench" stall "${busy[@]}" --stalled 20 ;;
    fuzz)
        "$bench" fuzz "${common[@]}" --connections 50 --frames "$fuzz_frames" \
            --corpus "$root/protocol/tests/data/frames" | tail -n 3
        ;;
    *) echo "compare.sh: no case $case" >&2 && exit 2 ;;
    esac
}

ringmq_case() {
    local case=$1 rep=$2 line
    start_ringmq
    line=$(measure "$ringmq_broker" "$case" "$results/$case.ringmq.$rep.json") || line+=" FAILED"
    log "$case ringmq: $line"
    stop_ringmq
}

apache_case() {
    local case=$1 rep=$2 line
    "$here/peers/apache.sh" resume "$work/apache"
    sleep 1
    line=$(measure "$apache_broker" "$case" "$results/$case.apache.$rep.json") || line+=" FAILED"
    log "$case apache: $line"
    # Its pages go to the disk now, not during the other's turn.
    sync -f "$work"
    "$here/peers/apache.sh" pause "$work/apache"
}

if [[ $only != apache && ! -x $ringmq ]] || [[ ! -x $bench ]]; then
    (cd "$root" && cargo build --release -p ringmq -p ringmq-bench)
fi
for ((rep = 1; rep <= reps; rep++)); do
    log "repetition $rep of $reps"
    [[ $only == ringmq ]] || start_apache
    for case in $cases; do
        [[ $only == ringmq ]] || apache_case "$case" "$rep"
        [[ $only == apache ]] || ringmq_case "$case" "$rep"
    done
    "$here/peers/apache.sh" stop "$work/apache"
    rm -rf "$work/apache"
done

commit=$(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)
[[ -z $(git -C "$root" status --porcelain -- protocol engine server bench 2>/dev/null) ]] ||
    commit="$commit with local changes"
brokers="RingMQ standalone with its defaults, durable"
[[ $only == ringmq ]] || brokers="Apache RocketMQ $apache, $flush; $brokers"
"$bench" report --dir "$results" --out "$out" --commit "$commit" --note "$brokers" \
    --note "1 KiB bodies, 8 queues, JSON headers, one generator thread beside the broker" \
    --note "\`bench/compare.sh --reps $reps --seconds $seconds\`, at most $bytes_max bytes a run"
log "written: $out.md and $out.json"
