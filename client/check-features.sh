#!/usr/bin/env bash
# Checks that the crate compiles without a warning with no feature, each feature alone, every pair of
# them, and all together. A feature is one `#[cfg]` beside others, so what two of them do to each
# other is what any subset can.
#
#   client/check-features.sh [CARGO OPTIONS]
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t features < <(cargo metadata --no-deps --format-version 1 --locked | python3 -c '
import json, sys
packages = json.load(sys.stdin)["packages"]
client = next(package for package in packages if package["name"] == "ringmq-client")
print("\n".join(sorted(client["features"])))')
((${#features[@]})) || { echo "the crate has no features?" >&2; exit 1; }

subsets=("")
for ((i = 0; i < ${#features[@]}; i++)); do
    subsets+=("${features[i]}")
    for ((j = i + 1; j < ${#features[@]}; j++)); do
        subsets+=("${features[i]},${features[j]}")
    done
done
subsets+=("$(IFS=,; echo "${features[*]}")")
for subset in "${subsets[@]}"; do
    echo "features: ${subset:-none}"
    cargo clippy --quiet --locked -p ringmq-client --no-default-features --features "$subset" "$@" -- -D warnings
done
