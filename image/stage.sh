#!/bin/bash
# Lays out what mkosi reads: stage.sh PROFILE WORK copies image/mkosi to WORK/mkosi
# and adds binaries, units, keys and apt sources. Modes come from here, not from
# the umask of whoever cloned.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
profile=$1 work=$2
cp -R "$here/mkosi" "$work/mkosi"
extra=$work/mkosi/mkosi.extra

# Units and their neighbours, shared with the .deb.
if [ -d "$here/units" ]; then
	for file in "$here"/units/*; do
		name=$(basename "$file")
		case $name in
		*.service | *.timer | *.socket | *.target | *.path | *.mount | *.automount | *.slice | *.service.d | *.slice.d)
			cp -R "$file" "$extra/usr/lib/systemd/system/" ;;
		*.preset) cp "$file" "$extra/usr/lib/systemd/system-preset/" ;;
		*.d) mkdir -p "$extra/usr/lib/$name" && cp -R "$file/." "$extra/usr/lib/$name/" ;;
		*.go | *.md) ;;
		*) echo "stage: where does image/units/$name go?" >&2; exit 1 ;;
		esac
	done
fi

mkdir -p "$extra/usr/bin" "$extra/usr/lib/edge/update-keys" "$extra/efi/loader/keys/auto"
find "$extra" -type d -exec chmod 0755 {} +
find "$extra" -type f -perm /100 -exec chmod 0755 {} +
find "$extra" -type f ! -perm /100 -exec chmod 0644 {} +
install -m 0755 "$work"/bin/* "$extra/usr/bin/"
install -m 0644 "$work/keys/current.crt" "$extra/usr/lib/edge/update-keys/current.pem"
install -m 0644 "$work/keys/next.crt" "$extra/usr/lib/edge/update-keys/next.pem"
mkdir -p "$work/mkosi/mkosi.sandbox/etc/apt"
# mkosi's own list has a source of debug symbols that mirrors do not carry.
components=main
[ "$profile" != metal ] || components="main non-free-firmware"
mkdir -p "$work/mkosi/mkosi.sandbox/etc/apt/sources.list.d"
COMPONENTS=$components "$here/mirrors.sh" |
	sed 's,^deb ,deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ,' >"$work/mkosi/mkosi.sandbox/etc/apt/sources.list.d/edge.list"
: >"$work/mkosi/mkosi.sandbox/etc/apt/sources.list.d/mkosi.sources"
