#!/bin/bash
# Runs systemd-journald with a configuration on a /var/log of a size, and prints what
# it makes of it, as JSON: journal.sh CONFIGURATION SIZE. It is called by unshare with
# new mount, pid, host name and IPC namespaces.
set -euo pipefail
mount --make-rprivate /
mount -t tmpfs -o mode=0755 tmpfs /run
mount -t tmpfs -o "size=$2" tmpfs /var/log
mkdir -p /run/systemd/journal /run/systemd/journald.conf.d /run/empty /var/log/journal
cp "$1" /run/systemd/journald.conf.d/
[ ! -d /etc/systemd/journald.conf.d ] || mount --bind /run/empty /etc/systemd/journald.conf.d
touch /run/systemd/journal/flushed # /var may be used
echo 0123456789abcdef0123456789abcdef >/run/machine-id
mount --bind /run/machine-id /etc/machine-id
/lib/systemd/systemd-journald 2>/run/said &
end=$((SECONDS + 20))
# The message in which it tells of its limits.
until journalctl -D /var/log/journal -o json --no-pager MESSAGE_ID=ec387f577b844b8fa948f33cad9a75e6 2>/dev/null | grep .; do
	[ $SECONDS -lt $end ] && kill -0 $! || { cat /run/said >&2; exit 1; }
	sleep 0.1
done
