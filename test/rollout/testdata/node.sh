#!/bin/bash
# The first process of a node: node.sh BASE WORK NAME [COMMAND...] lays WORK/upper over the
# root BASE, moves into it and becomes systemd, or the command. The lab has put it into namespaces of its own, but
# for the network, which is that of its box: all of this ends with it, and BASE is not
# written to.
set -euo pipefail
. "$(dirname "$0")/../../../image/deb/testdata/inside.sh"
base=$1 work=$2 name=$3
shift 3
[ $# -gt 0 ] || set -- /lib/systemd/systemd --unit=multi-user.target
mount --make-rprivate /
m=$work/root
rm -rf "$work/over" # what a start before has left says that its last writes may be lost
mkdir -p "$work"/{upper,over,root}
# volatile: a node outlives no test, so that nobody has to wait for the disk.
mount -t overlay overlay -o "lowerdir=$base,upperdir=$work/upper,workdir=$work/over,volatile" "$m"
settle_in
hostname "$name"
move_in
exec env -i container=node LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
