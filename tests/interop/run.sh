#!/usr/bin/env bash
# Installs what is missing, then puts published RocketMQ clients and RingMQ together (README.md).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
declare -A package_of=(
    [java]=default-jdk-headless [javac]=default-jdk-headless [mvn]=maven [go]=golang-go
    [node]=nodejs [npm]=npm [python3]=python3
)
missing=()
for tool in "${!package_of[@]}"; do
    command -v "$tool" >/dev/null || missing+=("${package_of[$tool]}")
done
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if ((${#missing[@]})); then
    apt-get update -q
    apt-get install -yq --no-install-recommends "${missing[@]}"
fi
exec python3 "$here/run.py" "$@"
