# Sourced by what boots systemd in namespaces: makes a copy of the running system at
# $root, below $dir, that is thrown away with them. enter has systemd start in it.
mount --make-rprivate /
over=$dir/over root=$dir/over/root
mkdir -p "$over"
mount -t tmpfs tmpfs "$over"
mkdir -p "$over"/{upper,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$over/upper,workdir=$over/work" "$root"
mount -t proc proc "$root/proc"
# What is below them is of the whole machine, but for the network's part: nothing
# that is started here may change it.
mount --bind -o ro "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount --bind "$root/proc/sys/net" "$root/proc/sys/net"
mount -o remount,bind,rw "$root/proc/sys/net"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t bpf -o mode=0700 bpf "$root/sys/fs/bpf"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir "$root/dev"/{pts,shm,mqueue}
mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
for node in null zero full random urandom tty; do cp -a "/dev/$node" "$root/dev/$node"; done

enter() {
	cd "$root"
	mkdir -p .old
	pivot_root . .old
	umount -l /.old
	exec env -i container=edge-test PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
		/lib/systemd/systemd --system --unit=multi-user.target --log-target=console --show-status=1
}
