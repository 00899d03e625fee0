#!/bin/bash
# The first process of a box: box.sh LOWER WORK COMMAND... lays WORK/upper over the
# root LOWER, moves into it and becomes COMMAND. The test has put it into
# namespaces of its own: all of this ends with it, and the root LOWER is not written to.
set -euo pipefail
. "$(dirname "$0")/inside.sh"
lower=$1 work=$2
shift 2
mount --make-rprivate /
m=$work/root
mkdir -p "$work"/{upper,work,root}
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$work/upper,workdir=$work/work" "$m"
mkdir -p "$m/pkgs" # not through the upper side: an overlay is not written to behind its back
mount --bind "$work/pkgs" "$m/pkgs"
settle_in
# An uplink for edged: the far end answers nothing.
ip link set lo up
ip link add eth0 type veth peer name far
ip link set eth0 up
ip link set far up
ip addr add 10.1.0.2/24 dev eth0
hostname box
move_in
touch /run/box-is-up
exec env -i container=box LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
