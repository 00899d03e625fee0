#!/bin/bash
# Makes the tools root: tools.sh DIR unpacks into the empty DIR a Debian trixie
# with what builds the image (tools.txt). The machine's own Debian may be older:
# nothing but mmdebstrap, tar and zstd of it is used. TOOLS_PACKAGES are further
# packages. The root is kept as a tarball in $CACHE, which may be empty or removed
# at any time.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:?usage: tools.sh DIR}
cache=${CACHE:-$here/../out/cache/image}

# shellcheck disable=SC2086 # words are meant
packages=$({ grep -v '^#' "$here/tools.txt"; printf '%s\n' ${TOOLS_PACKAGES:-}; } | sed '/^$/d' | sort -u | paste -sd,)
key=$(printf 'trixie apt %s' "$packages" | sha256sum | cut -c1-16)
tarball=$cache/tools-$key.tar.zst
mkdir -p "$dir" "$cache"

if [ -s "$tarball" ]; then
	tar --zstd -xf "$tarball" -C "$dir"
	exit 0
fi
mapfile -t mirrors < <("$here/mirrors.sh")
echo "tools: making the tools root (kept as $tarball)" >&2
# Pseudo-terminals and recommended packages are of no use to a build.
mmdebstrap --mode=root --variant=apt --include="$packages" \
	--keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
	--aptopt='APT::Install-Recommends "false"' --dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
	--skip=output/dev trixie "$dir" "${mirrors[@]}" >&2
trap 'rm -f "$tarball.$$"' EXIT
# Under another name first: a build that is cut leaves no half of a root.
tar --zstd -cf "$tarball.$$" --numeric-owner --one-file-system -C "$dir" .
mv "$tarball.$$" "$tarball"
