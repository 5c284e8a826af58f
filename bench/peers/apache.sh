#!/usr/bin/env bash
# Fetches Apache RocketMQ from its registry and runs its name server and broker for a comparison.
#
#   apache.sh fetch VERSION
#   apache.sh start VERSION DIR NAMESRV_PORT BROKER_PORT [ASYNC_FLUSH|SYNC_FLUSH]
#   apache.sh stop DIR
#   apache.sh pause DIR | resume DIR       (SIGSTOP and SIGCONT: no CPU while others are measured)
#
# VERSION is 4.9.7 or 5.5.0. DIR is created; stores, logs and process ids live in it, and `stop`
# leaves it behind for whoever made it to delete. The broker also takes BROKER_PORT - 2 and + 1.
# More lines of the broker's configuration are taken from $RINGMQ_PEER_CONF.
# Jars are kept in $RINGMQ_PEERS_DIR, by default target/peers of this repository.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
peers_dir=${RINGMQ_PEERS_DIR:-$here/../../target/peers}
boot_seconds_max=60

usage() {
    sed -n '4,7s/^# *//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

fetch() {
    local version=$1 jars=$peers_dir/apache-$1
    [[ -e $jars/complete ]] && return
    mkdir -p "$jars"
    mvn -q -B -f "$here/pom.xml" -Drocketmq.version="$version" \
        dependency:copy-dependencies -DoutputDirectory="$jars" >"$jars/fetch.log" 2>&1 || {
        echo "apache.sh: fetching $version failed, see $jars/fetch.log" >&2
        exit 1
    }
    touch "$jars/complete"
}

# Starts one JVM: name, main class, heap, configuration file.
launch() {
    local version=$1 dir=$2 name=$3 main=$4 heap=$5 conf=$6
    local opens=()
    for package in sun.nio.ch java.nio java.lang jdk.internal.ref java.util; do
        opens+=("--add-opens=java.base/$package=ALL-UNNAMED")
    done
    : >"$dir/$name.out"
    ROCKETMQ_HOME=$dir/home setsid java -server "-Xms$heap" "-Xmx$heap" \
        --add-exports=java.base/sun.nio.ch=ALL-UNNAMED "${opens[@]}" \
        "-Duser.home=$dir/home" "-Drocketmq.home.dir=$dir/home" \
        -cp "$peers_dir/apache-$version/*" "$main" -c "$conf" \
        >"$dir/$name.out" 2>&1 </dev/null &
    echo $! >"$dir/$name.pid"
    await_boot "$dir" "$name"
}

await_boot() {
    local dir=$1 name=$2 pid
    pid=$(<"$dir/$name.pid")
    for ((i = 0; i < boot_seconds_max * 10; i++)); do
        grep -q 'boot success' "$dir/$name.out" && return
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    echo "apache.sh: $name did not start:" >&2
    tail -n 20 "$dir/$name.out" >&2
    exit 1
}

write_conf() {
    local dir=$1 namesrv_port=$2 broker_port=$3 flush=$4
    mkdir -p "$dir/home/conf" "$dir/store"
    local logback='<configuration><root level="OFF"/></configuration>'
    for name in namesrv broker tools; do
        echo "$logback" >"$dir/home/conf/logback_$name.xml"
        echo "$logback" >"$dir/home/conf/rmq.$name.logback.xml"
    done
    printf 'listenPort=%s\nbindAddress=127.0.0.1\n' "$namesrv_port" >"$dir/namesrv.conf"
    cat >"$dir/broker.conf" <<CONF
listenPort=$broker_port
namesrvAddr=127.0.0.1:$namesrv_port
brokerIP1=127.0.0.1
brokerName=broker-a
brokerClusterName=DefaultCluster
storePathRootDir=$dir/store
storePathCommitLog=$dir/store/commitlog
flushDiskType=$flush
autoCreateTopicEnable=true
diskMaxUsedSpaceRatio=99
${RINGMQ_PEER_CONF:-}
CONF
}

start() {
    local version=$1 namesrv_port=$3 broker_port=$4 flush=${5:-ASYNC_FLUSH} dir
    mkdir -p "$2"
    dir=$(cd "$2" && pwd)
    fetch "$version"
    write_conf "$dir" "$namesrv_port" "$broker_port" "$flush"
    launch "$version" "$dir" namesrv org.apache.rocketmq.namesrv.NamesrvStartup 512m "$dir/namesrv.conf"
    launch "$version" "$dir" broker org.apache.rocketmq.broker.BrokerStartup "${RINGMQ_PEER_HEAP:-4g}" "$dir/broker.conf"
    echo "Apache RocketMQ $version $flush: name server 127.0.0.1:$namesrv_port," \
        "broker 127.0.0.1:$broker_port (pid $(<"$dir/broker.pid"))"
}

signal_all() {
    local signal=$1 dir=$2
    for name in broker namesrv; do
        [[ -e $dir/$name.pid ]] && kill "-$signal" "$(<"$dir/$name.pid")" 2>/dev/null || true
    done
}

# Killed, not shut down: the data is thrown away.
stop() {
    local dir=$1 pid
    signal_all KILL "$dir"
    for name in broker namesrv; do
        [[ -e $dir/$name.pid ]] || continue
        pid=$(<"$dir/$name.pid")
        while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
        rm -f "$dir/$name.pid"
    done
}

case ${1:-} in
fetch) [[ $# == 2 ]] || usage && fetch "$2" ;;
start) [[ $# -ge 5 ]] || usage && start "${@:2}" ;;
stop) [[ $# == 2 ]] || usage && stop "$2" ;;
pause) [[ $# == 2 ]] || usage && signal_all STOP "$2" ;;
resume) [[ $# == 2 ]] || usage && signal_all CONT "$2" ;;
*) usage ;;
esac
