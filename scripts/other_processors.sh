#!/usr/bin/env bash
# Runs the operation tests on emulated processors: one with AVX2 and FMA, one with neither.
# Slow (minutes each). Needs qemu-user (on Debian: apt-get install qemu-user).
set -euo pipefail
cd "$(dirname "$0")/.."
cargo test -p kernels --test operations --no-run
program=$(ls -t target/debug/deps/operations-* | grep -v '\.d$' | head -n 1)
for processor in Nehalem Haswell; do
    echo "== $processor"
    qemu-x86_64 -cpu "$processor" "$program" --test-threads 1
done
