#!/bin/bash
# Makes the root of a plain Debian for the test of the package: root.sh SUITE DIR.
# It comes from the mirror that this machine uses, or MIRROR. DIR may be kept: the
# test lays its changes over it.
set -euo pipefail
suite=${1:?usage: root.sh SUITE DIR}
dir=${2:?usage: root.sh SUITE DIR}
[ ! -e "$dir/etc/debian_version" ] || exit 0
mirror=${MIRROR:-$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
	grep -v '^[[:space:]]*#' | grep -oE '(https?|file):[^ ]*/debian/?( |$)' | head -n 1 | sed 's,/* *$,,' || true)}
[ -n "$mirror" ] || { echo "root: no Debian mirror in /etc/apt: set MIRROR=" >&2; exit 1; }
mkdir -p "$(dirname "$dir")"
rm -rf "$dir.new"
mmdebstrap --mode=root --variant=minbase --quiet --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
	--aptopt='APT::Install-Recommends "false"' --include=systemd,man-db,bash-completion,iproute2,nftables,zsh,fish \
	"$suite" "$dir.new" "deb $mirror $suite main"
# Under another name first: one that is cut is not taken for a root.
mv "$dir.new" "$dir"
