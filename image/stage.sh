#!/bin/bash
# Lays out what mkosi reads: stage.sh PROFILE WORK copies image/mkosi to WORK/mkosi
# and adds binaries, units, certificates and apt sources. Modes come from here, not
# from the umask of whoever cloned.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
profile=$1 work=$2
cp -R "$here/mkosi" "$work/mkosi"
extra=$work/mkosi/mkosi.extra

# What the .deb has too, and what only the appliance has: trees of /.
for tree in host appliance; do
	[ ! -d "$here/units/$tree" ] || cp -R "$here/units/$tree/." "$extra/"
done
mkdir -p "$extra/usr/bin" "$extra/usr/lib/edge/update-keys"
# For mkosi.finalize, which sees this folder alone.
mv "$work/mkosi/mkosi.profiles/$profile/modules.txt" "$work/mkosi/modules-$profile.txt"
[ ! -e "$work/bin/pack" ] || cp "$work/bin/initrd" "$work/bin/pack" "$work/mkosi/"
find "$work/mkosi" -type d -exec chmod 0755 {} +
find "$work/mkosi" -type f -perm /100 -exec chmod 0755 {} +
find "$work/mkosi" -type f ! -perm /100 -exec chmod 0644 {} +
for name in edged edgebgp edgeproxy edgectl; do install -m 0755 "$work/bin/$name" "$extra/usr/bin/$name"; done

# Who may sign an update, and what Secure Boot is to trust.
for name in current next; do install -m 0644 "$work/keys/$name.crt" "$extra/usr/lib/edge/update-keys/$name.pem"; done
mkdir -p "$extra/efi/loader/keys/auto"
cp "$work/keys"/*.auth "$extra/efi/loader/keys/auto/"

# The machine's own mirrors. mkosi's list has a source of debug symbols that
# mirrors do not carry; an empty file keeps it away.
components=main
[ "$profile" != metal ] || components="main non-free-firmware"
sources=$work/mkosi/mkosi.sandbox/etc/apt/sources.list.d
mkdir -p "$sources"
COMPONENTS=$components "$here/mirrors.sh" |
	sed 's,^deb ,deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ,' >"$sources/edge.list"
: >"$sources/mkosi.sources"
