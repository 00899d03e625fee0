# Makes a root that is mounted at $m a system of its own, for box.sh here and node.sh of
# test/rollout, which source it: settle_in, then move_in.
# shellcheck shell=bash

# What a system has beside its files. Who calls it is in namespaces of his own.
settle_in() {
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
}

# Leave the root of before behind.
move_in() {
	mkdir "$m/run/old"
	cd "$m"
	pivot_root . run/old
	umount -l /run/old
	rmdir /run/old
}
