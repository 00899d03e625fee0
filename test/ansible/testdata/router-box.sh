#!/bin/bash
# A router with BIRD and FRR's bgpd for tests that look at configurations, not at routes:
# router-box.sh FOLDER. The caller has a mount and a network namespace of its own. It says
# "ready", and ends with its standard input.
set -euo pipefail
box=$1
ip link set lo up
mkdir -p /run/frr
mount -t tmpfs tmpfs /run/frr
chown frr:frr /run/frr
trap 'kill $(jobs -p)' EXIT
bird -f -c "$box/bird.conf" -s "$box/bird.ctl" -P "$box/bird.pid" 2>"$box/bird.log" &
/usr/lib/frr/bgpd -f /dev/null -i /run/frr/bgpd.pid -A 127.0.0.1 -n >"$box/bgpd.log" 2>&1 &
until birdc -s "$box/bird.ctl" show status && vtysh -c "show running-config bgpd"; do
	read -rt 0.1 _ </dev/zero || true
	kill -0 %1 %2
done >/dev/null 2>&1
echo ready
cat >/dev/null
