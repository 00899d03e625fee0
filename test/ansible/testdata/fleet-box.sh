#!/bin/bash
# Makes this process a fresh plain Debian with our users, as far as edge_config looks
# at it, and goes on as the command: fleet-box.sh FOLDER COMMAND... The caller has a
# mount namespace of its own; FOLDER keeps what is written.
set -euo pipefail
box=$1
shift
mkdir -p "$box/etc" "$box/store"
for file in passwd group; do cp "/etc/$file" "$box/$file"; done
number=961
for user in edged edgebgp edgeproxy; do
	echo "$user:x:$number:$number::/:/usr/sbin/nologin" >>"$box/passwd"
	echo "$user:x:$number:" >>"$box/group"
	number=$((number + 1))
done
mount -t tmpfs -o mode=0755 tmpfs /run # no systemd, and no edged of somebody else
# Other tests look at this machine's folders at the same time: none is made in them.
for folder in /etc /var/lib; do
	mkdir -p "/run/over$folder" "/run/work$folder"
	mount -t overlay overlay -o "lowerdir=$folder,upperdir=/run/over$folder,workdir=/run/work$folder" "$folder"
done
mkdir /etc/edge /var/lib/edge-config
mount --bind "$box/etc" /etc/edge
mount --bind "$box/store" /var/lib/edge-config
mount --bind "$box/passwd" /etc/passwd
mount --bind "$box/group" /etc/group
exec "$@"
