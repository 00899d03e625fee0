#!/bin/bash
# The first process of a node: node.sh BASE WORK NAME [COMMAND...] lays WORK/upper over the
# root BASE, moves into it and becomes systemd, or the command. The lab has put it into namespaces of its own, but
# for the network, which is that of its box: all of this ends with it, and BASE is not
# written to.
set -euo pipefail
base=$1 work=$2 name=$3
shift 3
[ $# -gt 0 ] || set -- /lib/systemd/systemd --unit=multi-user.target
mount --make-rprivate /
m=$work/root
rm -rf "$work/over" # what a start before has left says that its last writes may be lost
mkdir -p "$work"/{upper,over,root}
# volatile: a node outlives no test, so that nobody has to wait for the disk.
mount -t overlay overlay -o "lowerdir=$base,upperdir=$work/upper,workdir=$work/over,volatile" "$m"
mount -t proc proc "$m/proc"
# The settings of the machine stay its own; those of the network are the node's.
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
hostname "$name"
mkdir "$m/run/old"
cd "$m"
pivot_root . run/old
umount -l /run/old
rmdir /run/old
exec env -i container=node LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
