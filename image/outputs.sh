#!/bin/bash
set -euo pipefail
profile=$1 work=$2
name=edge_${VERSION}_$profile
ls -la "$work/out"
rm -f "$OUT/$name".*
cp --sparse=always "$work/out/edge.raw" "$OUT/$name.raw"
