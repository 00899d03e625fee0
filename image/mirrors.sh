#!/bin/bash
# Prints the apt sources of trixie for an image, as lines for sources.list: the
# mirrors this machine uses, so that a proxy or a mirror of one's own serves the
# image too. MIRROR and SECURITY_MIRROR set others. COMPONENTS: "main" if not set.
set -euo pipefail
components=${COMPONENTS:-main}

# The first address in apt's sources that ends in the given name.
address() {
	cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
		grep -v '^[[:space:]]*#' | grep -oE "(https?|file):[^ ]*/$1/?( |\$)" | head -n 1 | sed 's,/* *$,,' || true
}
mirror=${MIRROR:-$(address debian)}
security=${SECURITY_MIRROR:-$(address debian-security)}
[ -n "$mirror" ] || { echo "mirrors: no Debian mirror in /etc/apt: set MIRROR=" >&2; exit 1; }
echo "deb $mirror trixie $components"
echo "deb $mirror trixie-updates $components"
[ -z "$security" ] || echo "deb $security trixie-security $components"
