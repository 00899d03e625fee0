#!/bin/sh
# Prepares a Debian box: sh test/install.sh go|demo|image|test. It looks for Go, and
# installs the packages of packages.txt that are missing ("go": none). It does
# nothing the second time. Daemons that come with packages (bird, frr) are
# neither started nor enabled: the lab runs its own, in namespaces of its own.
set -eu
cd "$(dirname "$0")/.."
what=${1:?usage: install.sh go|demo|image|test}

fail() {
	echo "preflight: $*" >&2
	exit 1
}

want=$(sed -n 's/^go //p' go.mod)
command -v go >/dev/null || fail "Go is missing: install Go $want or newer from https://go.dev/dl/"
have=$(cd / && GOTOOLCHAIN=local go env GOVERSION | sed 's/^go//; s/[ -].*//')
[ "$(printf '%s\n%s\n' "$want" "$have" | sort -V | head -n 1)" = "$want" ] ||
	fail "Go $have is too old: install Go $want or newer from https://go.dev/dl/"
[ "$what" != go ] || exit 0

[ "$(id -u)" = 0 ] || fail "make $what needs root: it makes namespaces, mounts file systems or loads BPF programs"

missing=
case $what in
test) groups='demo\|image\|test' ;;
*) groups=$what ;;
esac
for package in $(sed -n "s/^\($groups\) \([^ ]*\).*/\2/p" test/packages.txt | sort -u); do
	case $(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null || true) in
	ii*) ;;
	*) missing="$missing $package" ;;
	esac
done
packages=$(pwd)/test/packages.txt
unpack() (
	at=/usr/local/lib/catchment-test/$1
	[ ! -d "$at" ] || exit 0
	tmp=$(mktemp -d)
	trap 'rm -rf "$tmp"' EXIT
	chmod 755 "$tmp" # apt downloads as a user of its own
	cd "$tmp"
	echo "preflight: unpacking $1"
	# The newest kernel has a name of its own, which the package that is asked
	# for depends on.
	name() { case $1 in linux-image-*) apt-cache depends "$1" | sed -n 's/^ *Depends: \(linux-image-\)/\1/p' | head -n 1 ;; *) echo "$1" ;; esac; }
	apt-get -q download "$(name "$1")" || { apt-get -q update && apt-get -q download "$(name "$1")"; }
	dpkg-deb -x ./*.deb root
	mkdir -p "$(dirname "$at")"
	mv root "$at"
)
if [ "$what" = test ]; then
	for package in $(sed -n 's/^unpack \([^ ]*\).*/\1/p' "$packages"); do unpack "$package"; done
fi
[ -n "$missing" ] || exit 0

command -v apt-get >/dev/null || fail "these packages are missing, and there is no apt-get:$missing"

# Debian asks policy-rc.d before it starts a daemon; 101 is no.
policy=/usr/sbin/policy-rc.d
if [ -e "$policy" ]; then
	code=0
	"$policy" frr start >/dev/null 2>&1 || code=$?
	[ $code = 101 ] || fail "$policy would let daemons start; install these by hand:$missing"
else
	trap 'rm -f "$policy"' EXIT
	trap 'exit 1' HUP INT TERM
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
fi

echo "preflight: installing$missing"
export DEBIAN_FRONTEND=noninteractive
apt="apt-get -q -y -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0"
$apt update
# shellcheck disable=SC2086 # words are meant
$apt install --no-install-recommends $missing

# Nor at the next boot.
for daemon in nginx haproxy; do
	case "$missing " in *" $daemon "*) update-rc.d "$daemon" disable >/dev/null ;; esac
done
case "$missing " in *" bird2 "*) update-rc.d bird disable >/dev/null ;; esac
case "$missing " in *" frr "*) update-rc.d frr disable >/dev/null ;; esac
