#!/bin/bash
# Builds the image: build.sh [PROFILE] writes out/image. Settings, all optional,
# by the environment (make image NAME=value):
#   VERSION         the version, else the text of image/VERSION; version.sh has its form
#   OUT, CACHE      folders: out/image and out/cache/image
#   SIGN_KEY        the key that signs, a PEM file or a pkcs11: URI, with
#   SIGN_CERT       its certificate, and
#   NEXT_CERT       the certificate of the key that comes after it
#   PKCS11_MODULE, SIGN_BIND, SIGN_ENV, TOOLS_PACKAGES   for tokens: docs/image.md
#   INITRD          ours, or mkosi (for comparison)
#   MIRROR, SECURITY_MIRROR   where Debian's packages come from
# Everything is made in a tmpfs of this process alone (4 GB of memory), under the
# same paths on any machine: the bytes depend neither on the folder nor on the file
# system of the clone.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
src=$(dirname "$here")
profile=${1:-cloud}
OUT=$(realpath -m "${OUT:-$src/out/image}") CACHE=$(realpath -m "${CACHE:-$src/out/cache/image}")
fail() { echo "image: $*" >&2; exit 1; }
VERSION=$("$here/version.sh" "${VERSION:-}") || fail "there is no such version"
export OUT CACHE VERSION
case $profile in cloud | metal) ;; *) fail "no profile $profile: cloud or metal" ;; esac
case ${INITRD:=ours} in ours | mkosi) ;; *) fail "no initrd $INITRD: ours or mkosi" ;; esac
[ "$(id -u)" = 0 ] || fail "it mounts and makes namespaces: run it as root"
if [ "${IMAGE_UNSHARED:-}" != yes ]; then
	IMAGE_UNSHARED=yes exec unshare --mount --propagation private "$0" "$@"
fi
step() { echo "image: [${SECONDS} s] $*" >&2; }

work=/tmp/edge-image-build # of this mount namespace alone: builds do not meet
mkdir -p "$work" "$OUT" "$CACHE/packages"
mount -t tmpfs -o mode=0755,size=8G edge-image "$work"
# apt does not lock the cache of packages.
exec 9>"$CACHE/lock"
flock 9
mkdir -p "$work"/{bin,keys,out,tmp}
umask 022

# A clone may belong to somebody else than root; go asks git too.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
if commit=$(git -C "$src" rev-parse HEAD 2>/dev/null); then
	epoch=$(git -C "$src" log -1 --format=%ct) vcs=true
	[ -z "$(git -C "$src" status --porcelain)" ] || commit+=+dirty
else
	epoch=$(stat -c %Y "$here/VERSION") vcs=false commit=
fi
export SOURCE_DATE_EPOCH=$epoch

step "tools root"
"$here/tools.sh" "$work/tools"
# systemd-sbsign 257 writes the time of day into what it signs: it gets that of the
# commit.
sbsign=$work/tools/usr/lib/systemd/systemd-sbsign
mv "$sbsign" "$sbsign.real"
cat >"$sbsign" <<EOF
#!/bin/sh
export LD_PRELOAD=/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1 TZ=UTC0 FAKETIME='$(date -u -d "@$epoch" '+%F %T')'
exec /usr/lib/systemd/systemd-sbsign.real "\$@"
EOF
chmod 0755 "$sbsign"

step "binaries"
commands=(./cmd/edged ./cmd/edgebgp ./cmd/edgeproxy ./cmd/edgectl ./image/publish)
[ "$INITRD" = mkosi ] || commands+=(./image/initrd ./image/initrd/pack)
(cd "$src" && CGO_ENABLED=0 go build -trimpath -buildvcs=$vcs \
	-ldflags='-s -w -buildid=' -o "$work/bin/" "${commands[@]}")

# shellcheck source-path=SCRIPTDIR source=keys.sh
. "$here/keys.sh"
# Runs a command in the tools root, with the folder of the build as /build.
tools() {
	"$here/inroot" "$work/tools" -b "$work:/build" -b "$CACHE/packages:/packages" "${sign_binds[@]}" -- \
		"${sign_env[@]}" SOURCE_DATE_EPOCH="$epoch" "$@"
}

step "Secure Boot"
take_certificate "$SIGN_CERT" current || fail "SIGN_CERT must be the certificate of SIGN_KEY: a PEM file or a pkcs11: URI"
take_certificate "$NEXT_CERT" next ||
	fail "NEXT_CERT must be the certificate of the key that will follow: it is enrolled from the first day"
tools /build/bin/publish enrol -key "$sign_key" -cert /build/keys/current.crt -next /build/keys/next.crt -out /build/keys -time "$epoch"

step "tree"
"$here/stage.sh" "$profile" "$work"

step "mkosi"
profiles=$profile
initrd=--kernel-modules-initrd=no # ours: mkosi.finalize makes it
[ "$INITRD" = ours ] || { profiles+=,mkosi-initrd && initrd=--kernel-modules-initrd=yes; }
tools mkosi --directory=/build/mkosi --profile="$profiles" \
	--output-directory=/build/out --workspace-directory=/build/tmp --package-cache-dir=/packages \
	--output=edge --image-version="$VERSION" --unified-kernel-image-format="edge_$VERSION" \
	--source-date-epoch="$epoch" --seed=0b6b9d2e-9a3c-4f4c-8d0e-5b5f0c1f7a11 \
	--kernel-command-line="edge.version=$VERSION" "$initrd" "${sign_mkosi[@]}" build >"$work/mkosi.log" 2>&1 ||
	{ tail -n 60 "$work/mkosi.log" >&2; cp "$work/mkosi.log" "$OUT/mkosi.log"; fail "mkosi: see $OUT/mkosi.log"; }
rm -f "$OUT/mkosi.log"

step "outputs"
# shellcheck source-path=SCRIPTDIR source=outputs.sh
. "$here/outputs.sh"
step "done"
