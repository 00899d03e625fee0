#!/bin/bash
# Packs the root that all nodes lie over: root.sh TARBALL. A plain Debian 12 as a
# server has it, with what Ansible asks of a host: sshd and Python. It comes from the
# mirror that this machine uses, or MIRROR.
set -euo pipefail
tarball=${1:?usage: root.sh TARBALL}
mirror=${MIRROR:-$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
	grep -v '^[[:space:]]*#' | grep -oE '(https?|file):[^ ]*/debian/?( |$)' | head -n 1 | sed 's,/* *$,,' || true)}
[ -n "$mirror" ] || { echo "root: no Debian mirror in /etc/apt: set MIRROR=" >&2; exit 1; }
export TMPDIR=${tarball%/*}
# python3-apt: the module for packages installs it where it is missing, and a node
# reaches no mirror.
packages=systemd-sysv,dbus,openssh-server,python3,python3-apt,nftables,iproute2,procps,kmod,iputils-ping,ethtool
# Nobody looks at these nine systems, and they share two cores: no consoles, no logins
# to account for, nothing that a clock starts.
units="console-getty.service getty.target systemd-logind.service systemd-random-seed.service systemd-update-utmp.service
	systemd-update-utmp-runlevel.service systemd-pstore.service e2scrub_reap.service tmp.mount
	apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer systemd-tmpfiles-clean.timer"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/etc/{systemd/system/systemd-sysctl.service.d,systemd/journald.conf.d,ssh/sshd_config.d,dpkg/dpkg.cfg.d,apt}
for unit in $units; do ln -s /dev/null "$work/etc/systemd/system/$unit"; done
# Of /proc/sys only the network's part is a node's own and can be written.
cat >"$work/etc/systemd/system/systemd-sysctl.service.d/10-node.conf" <<'UNIT'
[Unit]
ConditionPathIsReadWrite=
ConditionPathIsReadWrite=/proc/sys/net
[Service]
ExecStart=
ExecStart=/lib/systemd/systemd-sysctl --prefix=/net
UNIT
printf '[Journal]\nStorage=volatile\nRuntimeMaxUse=16M\nRateLimitBurst=0\n' >"$work/etc/systemd/journald.conf.d/10-node.conf"
printf 'PasswordAuthentication no\nKbdInteractiveAuthentication no\nUseDNS no\n' >"$work/etc/ssh/sshd_config.d/10-node.conf"
# A node outlives no test: nothing has to be on the disk.
echo force-unsafe-io >"$work/etc/dpkg/dpkg.cfg.d/10-node"
# Host keys are each node's own, and so is the machine id. There is no mirror.
mmdebstrap --mode=root --variant=minbase --quiet --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
	--aptopt='APT::Install-Recommends "false"' --include="$packages" \
	--customize-hook="tar -C $work -c etc | tar -C \"\$1\" -x --no-same-owner" \
	--customize-hook='rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/machine-id "$1"/etc/apt/sources.list; rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin "$1"/var/cache/apt/archives/*.deb "$1"/usr/share/locale "$1"/usr/share/doc/*' \
	bookworm "$work/root.tar.zst" "deb $mirror bookworm main"
# Under another name first: one that is cut is not taken for a root.
mv "$work/root.tar.zst" "$tarball"
