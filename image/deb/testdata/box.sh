#!/bin/bash
# The first process of a box: box.sh LOWER WORK COMMAND... lays WORK/upper over the
# root LOWER, moves into it and becomes COMMAND. The test has put it into
# namespaces of its own: all of this ends with it, and the root LOWER is not written to.
set -euo pipefail
lower=$1 work=$2
shift 2
mount --make-rprivate /
m=$work/root
mkdir -p "$work"/{upper,work,root}
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$work/upper,workdir=$work/work" "$m"
mkdir -p "$m/pkgs" # not through the upper side: an overlay is not written to behind its back
mount --bind "$work/pkgs" "$m/pkgs"
mount -t proc proc "$m/proc"
# The settings of the machine stay its own; those of the network are the box's.
mount --bind "$m/proc/sys" "$m/proc/sys"
mount --bind "$m/proc/sys/net" "$m/proc/sys/net"
mount -o remount,bind,ro "$m/proc/sys"
mount -t sysfs -o ro sysfs "$m/sys"
mount -t tmpfs -o mode=0755 tmpfs "$m/sys/fs/cgroup"
mount -t cgroup2 cgroup2 "$m/sys/fs/cgroup"
mount -t bpf -o mode=0700 bpf "$m/sys/fs/bpf"
mount -t tmpfs -o mode=0755 tmpfs "$m/dev"
for device in null zero full random urandom tty; do
	touch "$m/dev/$device"
	mount --bind "/dev/$device" "$m/dev/$device"
done
mkdir "$m/dev/pts" "$m/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$m/dev/pts"
ln -s pts/ptmx "$m/dev/ptmx"
ln -s /proc/self/fd "$m/dev/fd"
mount -t tmpfs tmpfs "$m/dev/shm"
mount -t tmpfs -o mode=0755 tmpfs "$m/run"
mount -t tmpfs -o mode=1777 tmpfs "$m/tmp"
# An uplink for edged: the far end answers nothing.
ip link set lo up
ip link add eth0 type veth peer name far
ip link set eth0 up
ip link set far up
ip addr add 10.1.0.2/24 dev eth0
hostname box
mkdir "$m/run/old"
cd "$m"
pivot_root . run/old
umount -l /run/old
rmdir /run/old
touch /run/box-is-up
exec env -i container=box LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
