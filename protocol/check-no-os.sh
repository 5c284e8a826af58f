#!/usr/bin/env bash
# Proves that ringmq-protocol does no I/O, reads no clock and starts no threads.
#
# Three checks, each of which fails with one line that says what is wrong:
#   1. the crate is `#![no_std]`, and names `std` only for its own tests;
#   2. its normal dependencies, all levels, are on a list of crates that need no operating system
#      in the features it asks for;
#   3. the built library refers to no symbol of std, and to none of libc beyond memory copies.
#
# Run from anywhere; needs cargo and a symbol lister (nm or llvm-nm).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cd "$here"

fail() {
    echo "check-no-os: $*" >&2
    exit 1
}

# --- 1. the source -------------------------------------------------------------------------------

grep -q '^#!\[no_std\]' src/lib.rs || fail "src/lib.rs is not #![no_std]"

# `extern crate std` may only stand behind `#[cfg(test)]`.
externs=$(find src -name '*.rs' -exec awk '
    /^[^\/]*extern crate std/ && before !~ /^ *#\[cfg\(test\)\]/ { print FILENAME ": " $0 }
    { before = $0 }' {} +)
[ -z "$externs" ] || fail "std is linked outside of tests: $(head -1 <<<"$externs")"

# --- 2. the dependencies -------------------------------------------------------------------------

# None of these needs an operating system without its `std` feature; serde_derive and what it needs
# run at compile time only.
allowed=' cfg-if crc32fast itoa memchr proc-macro2 quote ryu serde serde_core serde_derive serde_json syn unicode-ident zmij '
tree=$(cargo tree --quiet --locked -p ringmq-protocol -e normal --prefix none --format '{p}|{f}' 2>/dev/null ||
    cargo tree --quiet -p ringmq-protocol -e normal --prefix none --format '{p}|{f}')
while IFS='|' read -r package features; do
    name=${package%% *}
    [ -n "$name" ] && [ "$name" != ringmq-protocol ] || continue
    [[ $allowed == *" $name "* ]] || fail "dependency $name is not on the list of crates without I/O"
    # Build-time crates may use std; what is linked may not.
    case $name in proc-macro2 | quote | serde_derive | syn | unicode-ident) continue ;; esac
    case ",${features// /}," in *,std,*) fail "dependency $name has its feature std on" ;; esac
done <<<"$tree"

# --- 3. the built library ------------------------------------------------------------------------

target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
# Built alone and with no codegen left for later, so that every function that the crate defines is
# there with the symbols it needs. Overflow checks as in release builds.
CARGO_TARGET_DIR=$target CARGO_PROFILE_RELEASE_LTO=off RUSTFLAGS='' \
    cargo rustc --quiet --release -p ringmq-protocol --lib --crate-type rlib -- \
    -C codegen-units=1 -C link-dead-code=yes || fail "the library does not build"
rlib=$(find "$target/release" -maxdepth 1 -name 'libringmq_protocol*.rlib' | head -1)
[ -n "$rlib" ] || fail "no rlib was built"

nm=$(command -v nm || command -v llvm-nm) || fail "neither nm nor llvm-nm is installed"
symbols=$("$nm" --undefined-only --demangle "$rlib" 2>/dev/null | sed -n 's/^ *[Uw] //p' | sort -u)
[ -n "$symbols" ] || fail "nm found no undefined symbols, which no real library has"

# Rust paths: only core, alloc, compiler built-ins and the allowed crates may be called.
paths='^(<|&|\[|\(|dyn |impl |_R|core::|alloc::|compiler_builtins::|ringmq_protocol::|serde|memchr::|crc32fast::|itoa::|zmij::|ryu::|__rust|rust_)'
# Memory functions that the compiler calls by itself, and the unwinder's hook.
builtins='^(memcpy|memmove|memset|memcmp|bcmp|strlen|_Unwind_Resume|rust_eh_personality|DW\.ref\.rust_eh_personality|_GLOBAL_OFFSET_TABLE_)$'

mangled_std=$(grep -E '(^|[^a-zA-Z_])std::|3std' <<<"$symbols" || true)
[ -z "$mangled_std" ] || fail "the library refers to std: $(head -1 <<<"$mangled_std")"

other=$(grep -vE "$paths" <<<"$symbols" | grep -vE "$builtins" || true)
[ -z "$other" ] || fail "the library refers to a foreign symbol: $(head -1 <<<"$other")"

echo "check-no-os: ringmq-protocol has no I/O, clock or threads ($(wc -l <<<"$symbols") symbols checked)"
