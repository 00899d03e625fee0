#!/bin/bash
# Builds the image: build.sh [PROFILE] writes out/image. Settings, all optional,
# by the environment (make image NAME=value):
#   VERSION         the version, else the text of image/VERSION
#   OUT, CACHE      folders: out/image and out/cache/image
#   SIGN_KEY        the key that signs, a PEM file or a pkcs11: URI, with
#   SIGN_CERT       its certificate (PEM), and
#   NEXT_CERT       the certificate of the key that comes after it
#   INITRD          ours, or mkosi (for comparison)
#   MIRROR, SECURITY_MIRROR   where Debian's packages come from
# Everything is made in a tmpfs of this process alone (about 4 GB), under the same
# paths whatever the machine: the bytes do not depend on the folder or on the file
# system of the clone.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
src=$(dirname "$here")
profile=${1:-cloud}
export OUT=${OUT:-$src/out/image} CACHE=${CACHE:-$src/out/cache/image}
export VERSION=${VERSION:-$(cat "$here/VERSION")}

fail() { echo "image: $*" >&2; exit 1; }
case $profile in cloud | metal) ;; *) fail "no profile $profile: cloud or metal" ;; esac
[[ $VERSION =~ ^[0-9]+(\.[0-9]+)*(-[a-z0-9.]+)?$ ]] || fail "version \"$VERSION\": digits and dots, and a -suffix if need be, as 1.2.0 or 1.2.0-rc1"
[ "$(id -u)" = 0 ] || fail "it mounts and makes namespaces: run it as root"
if [ "${IMAGE_UNSHARED:-}" != yes ]; then
	IMAGE_UNSHARED=yes exec unshare --mount --propagation private "$0" "$@"
fi

work=/tmp/edge-image-build # of this mount namespace alone: builds do not meet
mkdir -p "$work" "$OUT" "$CACHE/packages"
mount -t tmpfs -o mode=0755,size=8G edge-image "$work"

epoch=$(git -C "$src" log -1 --format=%ct 2>/dev/null) || epoch=0
commit=$(git -C "$src" rev-parse HEAD 2>/dev/null) || commit=
export SOURCE_DATE_EPOCH=$epoch

step() { echo "image: [$SECONDS s] $*" >&2; }

step "tools root"
"$here/tools.sh" "$work/tools"

step "binaries"
mkdir -p "$work/bin"
(cd "$src" && CGO_ENABLED=0 go build -trimpath -buildvcs="$([ -n "$commit" ] && echo true || echo false)" \
	-ldflags='-s -w -buildid=' -o "$work/bin/" ./cmd/edged ./cmd/edgebgp ./cmd/edgeproxy ./cmd/edgectl)

step "keys"
. "$here/keys.sh"

step "tree"
"$here/stage.sh" "$profile" "$work"

step "mkosi"
initrd=()
profiles=("$profile")
if [ "${INITRD:-ours}" = mkosi ]; then
	profiles+=(mkosi-initrd)
else
	initrd=(--initrd=/build/initrd.cpio.zst --kernel-modules-initrd=no)
fi
mkdir -p "$work/out" "$work/tmp"
"$here/inroot" "$work/tools" -b "$work:/build" -b "$CACHE/packages:/packages" "${sign_binds[@]}" -- \
	"${sign_env[@]}" SOURCE_DATE_EPOCH="$epoch" \
	mkosi --directory=/build/mkosi --profile="$(IFS=,; echo "${profiles[*]}")" \
	--output-directory=/build/out --workspace-directory=/build/tmp --package-cache-dir=/packages \
	--output=edge --image-version="$VERSION" --unified-kernel-image-format="edge_$VERSION" \
	--source-date-epoch="$epoch" --seed=0b6b9d2e-9a3c-4f4c-8d0e-5b5f0c1f7a11 \
	--kernel-command-line="edge.version=$VERSION" "${initrd[@]}" \
	"${sign_mkosi[@]}" build >&2

step "outputs"
"$here/outputs.sh" "$profile" "$work" "$commit"
step "done: $OUT"
