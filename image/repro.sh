#!/bin/bash
# Builds the image a second time, from a copy of the clone in another folder, and
# compares all outputs with those of the first build: repro.sh [PROFILE] after
# build.sh [PROFILE] with the same settings. Package lists may have moved in
# between: the second build takes the packages that the first one has downloaded.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
src=$(dirname "$here")
profile=${1:-cloud}
first=$(realpath -m "${OUT:-$src/out/image}")
cache=$(realpath -m "${CACHE:-$src/out/cache/image}")
version=${VERSION:-$(cat "$here/VERSION")}

[ -s "$first/edge_${version}_$profile.raw" ] || { echo "repro: no image of $version in $first: make image first" >&2; exit 1; }
work=$(mktemp -d /var/tmp/edge-repro.XXXXXX)
trap 'rm -rf "$work"' EXIT
git clone -q "$src" "$work/another/folder"
[ -z "$(git -C "$src" status --porcelain)" ] || { echo "repro: there are changes that are not committed: the copy would not have them" >&2; exit 1; }
mkdir -p "$work/out"
[ ! -d "$first/keys" ] || cp -a "$first/keys" "$work/out/keys"
VERSION=$version OUT=$work/out CACHE=$cache "$work/another/folder/image/build.sh" "$profile"

sums() { (cd "$1" && find . -type f ! -path './keys/*' \( -path "./payload_$profile/*" -o -name "edge_${version}_$profile.*" \) -exec sha256sum {} + | sort -k2); }
if ! diff <(sums "$first") <(sums "$work/out"); then
	echo "repro: the second build has other bytes" >&2
	exit 1
fi
sums "$first"
echo "repro: two builds of $(git -C "$src" rev-parse --short HEAD) in two folders: the same bytes"
