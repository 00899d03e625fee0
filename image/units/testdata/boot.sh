#!/bin/bash
# Boots systemd, with the units of this folder, in namespaces over a copy of the
# running system: boot.sh DIR BINARIES TREE. It is called by unshare with new mount, pid,
# network, host name, IPC and cgroup namespaces. What it says comes in DIR/said.
set -euo pipefail
dir=$1 bin=$2 tree=$3
. "$tree/testdata/root.sh"

install -m 0755 "$bin"/* "$root/usr/bin/"
cp -R --no-preserve=ownership "$tree/host/usr" "$root/"
rm -rf "$root/etc/systemd/system" "$root/etc/edge" "$root/var/lib/edge"
mkdir -p "$root/etc/systemd/system/multi-user.target.wants" "$root/etc/edge"
cp "$dir"/etc/* "$root/etc/edge/"
units=$root/etc/systemd/system
for unit in systemd-logind systemd-timesyncd systemd-udevd systemd-sysctl systemd-binfmt systemd-random-seed; do ln -s /dev/null "$units/$unit.service"; done
ln -s /dev/null "$units/tmp.mount" # it would hide what is bound there
for unit in edged.service edgebgp.service edgeproxy.service edge-firewall.service edge-firewall.path edge-tune.service; do
	ln -s "/usr/lib/systemd/system/$unit" "$units/multi-user.target.wants/"
done
mkdir -p "$root$dir"
mount --bind "$dir" "$root$dir"
cat >"$units/check.service" <<UNIT
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=/bin/bash $tree/testdata/check.sh $dir
StandardOutput=append:$dir/said
StandardError=inherit
TimeoutStartSec=120s
ExecStopPost=/bin/systemctl --force --force poweroff
UNIT
ln -s ../check.service "$units/multi-user.target.wants/"

# A router and an origin, one link away.
unshare -n sleep infinity &
far=$!
until [ "$(readlink /proc/$far/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do :; done
ip link set lo up
ip link add eth0 type veth peer name r0
for link in eth0 r0; do for what in tx tso gso; do ethtool -K $link $what off >/dev/null; done; done
ip link set r0 netns $far
ip addr add 10.1.0.2/24 dev eth0
ip link set eth0 up
nsenter -t $far -n ip addr add 10.1.0.1/24 dev r0
nsenter -t $far -n ip link set r0 up
nsenter -t $far -n ip link set lo up
ip route add default via 10.1.0.1
cat >"$units/origin.service" <<UNIT
[Service]
ExecStart=/usr/bin/nsenter -t $far -n /usr/bin/python3 -m http.server --directory $dir/origin 80
UNIT
ln -s ../origin.service "$units/multi-user.target.wants/"
# What systemd-sysctl would set, of the network of this namespace.
echo 0 2147483647 >/proc/sys/net/ipv4/ping_group_range
echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start

systemd-sysusers --root="$root" "$tree/host/usr/lib/sysusers.d/edge.conf"
chroot "$root" sh -c 'cd /etc/edge && chown edged node.key ring.seed gossip.key && chown edgebgp bgp.key && chmod 0600 node.key ring.seed gossip.key bgp.key'
enter
