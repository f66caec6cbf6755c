#!/bin/sh
# Writes the corpus anew, from anywhere in the repository.
set -eu
cd "$(dirname "$0")/../.."
rm -rf testdata/torture/files testdata/torture/folders testdata/torture/configs testdata/torture/pickles
cargo run -q -p checkpoint --example torture -- testdata/torture
