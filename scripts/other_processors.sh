#!/usr/bin/env bash
# Runs the tests of operations and 8-bit codecs on emulated processors: one with AVX2 and FMA, one with neither.
# Slow (minutes each). Needs qemu-user (on Debian: apt-get install qemu-user).
set -euo pipefail
cd "$(dirname "$0")/.."
for tests in operations fp8; do
    program=$(cargo test -p kernels --test "$tests" --no-run 2>&1 | sed -n 's/.*(\(target[^)]*\)).*/\1/p')
    for processor in Nehalem Haswell; do
        echo "== $tests on $processor"
        qemu-x86_64 -cpu "$processor" "$program" --test-threads 1
    done
done
