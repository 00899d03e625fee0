#!/bin/bash
# Builds the package: build.sh writes out/deb/catchment-edge_VERSION_amd64.deb.
# Settings, all optional, by the environment (make deb NAME=value):
#   VERSION      the version, else the text of image/VERSION; ../version.sh has its form
#   OUT          folder: out/deb
#   COMPRESSION  level of xz, 0 to 9: 6; tests take a faster one
# One commit and one version give the same bytes, wherever and whenever they are
# built: times are that of the commit, owners are root, no path of the build is kept.
# It needs Go and dpkg-deb, no root.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
src=$(cd "$here/../.." && pwd)
out=${OUT:-$src/out/deb}
umask 022

fail() { echo "deb: $*" >&2; exit 1; }
# What Debian has behind a dash is newer than without; behind a tilde it is older, as a
# release candidate is.
version=$("$src/image/version.sh" "${VERSION:-}") || fail "there is no such version"
package=catchment-edge
commit=$(git -C "$src" rev-parse HEAD 2>/dev/null) || commit=
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$src" log -1 --format=%ct 2>/dev/null)} ||
	fail "git does not tell when the commit was made: set SOURCE_DATE_EPOCH"
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
bin=$root/usr/bin
doc=$root/usr/share/doc/$package
mkdir -p "$bin" "$doc" "$root/DEBIAN" "$root/etc/edge" "$out"

# Static, so that one package does for all of Debian and Ubuntu.
cd "$src"
module=$(go list -m)
vcs=$([ -n "$commit" ] && echo true || echo false)
commands=(./cmd/edged ./cmd/edgebgp ./cmd/edgeproxy ./cmd/edgectl)
CGO_ENABLED=0 GOOS=linux GOARCH=amd64 go build -trimpath -buildvcs="$vcs" \
	-ldflags="-s -w -buildid= -X $module/cmd/internal/version.release=$version" -o "$bin/" "${commands[@]}"

# Modes come from here, not from the umask of whoever cloned.
cp -R --no-preserve=mode "$src/image/units/host/." "$here/files/." "$root/"
go run ./image/deb/manual -bin "$bin" -source "$src" -release "$version" -date "$SOURCE_DATE_EPOCH" -out "$root/usr/share"
mv "$root/usr/share/changelog" "$doc/changelog"
install -m 0644 reference.yaml "$doc/reference.yaml"
install -m 0644 "$here/copyright" "$doc/copyright"

# The licences of what is linked in want to be handed on with it.
go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' "${commands[@]}" | sort -u |
	while read -r path number dir; do
		echo "==== $path $number"
		for text in "$dir"/{LICEN[CS]E,COPYING,NOTICE,PATENTS}*; do
			if [ -f "$text" ]; then echo; cat "$text"; fi
		done
		echo
	done >"$doc/third-party"
echo "==== Go $(go env GOVERSION)" >>"$doc/third-party"
cat "$(go env GOROOT)/LICENSE" >>"$doc/third-party"

# -n: a gzip file holds neither name nor time.
gzip -9n "$doc"/{changelog,third-party} "$root"/usr/share/man/man*/*

for script in preinst postinst prerm postrm; do
	install -m 0755 "$here/control/$script" "$root/DEBIAN/$script"
done
(cd "$root" && find etc -type f -printf '/%p\n' | LC_ALL=C sort) >"$root/DEBIAN/conffiles"
(cd "$root" && find usr etc -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
# What the files take in blocks of 1 KiB, and one for each folder (deb-substvars).
size=$(find "$root/usr" "$root/etc" -printf '%y %s\n' | awk '{ n += $1 == "f" ? int(($2 + 1023) / 1024) : 1 } END { print n }')
sed -e "s/@VERSION@/$version/; s/@SIZE@/$size/" "$here/control/control" >"$root/DEBIAN/control"

find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
deb=$out/${package}_${version}_amd64.deb
# One thread: how xz cuts its blocks depends on how many there are.
dpkg-deb --root-owner-group --threads-max=1 -Zxz "-z${COMPRESSION:-6}" --build "$root" "$work/deb" >/dev/null
mv "$work/deb" "$deb"
echo "$deb"
