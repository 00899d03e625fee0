#!/bin/bash
# Runs in what boot.sh has booted and says what is the case, a line each: the test
# reads them. "== WHAT" begins a part.
set -uo pipefail
dir=$1
daemons="edged edgebgp edgeproxy"
pid() { systemctl show -P MainPID "$1"; }
# await WHAT SECONDS COMMAND...: until it succeeds.
await() {
	local what=$1 end=$((SECONDS + $2))
	shift 2
	until "$@"; do
		[ $SECONDS -lt $end ] || { echo "not in time: $what"; return; }
		sleep 0.1
	done
	echo "$what"
}
answered() { edgectl status >/tmp/status 2>&1 && ! grep -q "does not answer\|nothing has been decided" /tmp/status; }
up() { edgectl status -v 2>/dev/null | grep -qE "^$1 +up "; }

await "the daemons answer each other" 30 answered
for probe in fwd proxy unit ping cmd route mem disk health origin vip; do await "probe $probe is up" 20 up $probe; done

echo "== processes"
for d in $daemons; do
	echo "$d user $(stat -c %U /proc/$(pid $d)) $(grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/$(pid $d)/status | tr '\n\t' '  ')"
	echo "$d started again $(systemctl show -P NRestarts $d) times, oom $(systemctl show -P OOMScoreAdjust $d)"
done
echo "== walls"
for d in $daemons; do
	for path in /usr/bin /etc/edge /sys/fs/bpf /home /var/lib/edge; do
		nsenter -t "$(pid $d)" -m touch "$path/x" 2>/dev/null && echo "$d may write $path" && nsenter -t "$(pid $d)" -m rm "$path/x"
	done
done
echo "edgeproxy sees $(nsenter -t "$(pid edgeproxy)" -m ls /run/edge | tr '\n' ' ')"
for key in node.key bgp.key gossip.key; do
	for user in edgebgp edgeproxy nobody; do
		setpriv --reuid $user --clear-groups cat /etc/edge/$key >/dev/null 2>&1 && echo "$user reads $key"
	done
done
for user in edgeproxy 65534; do
	setpriv --reuid $user --regid $user --clear-groups curl -s --max-time 2 --unix-socket /run/edgebgp/edgebgp.sock http://x/v1/state >/dev/null && echo "$user reaches edgebgp"
done
echo "== bgp"
journalctl --no-pager -o cat -u edgebgp | grep -c "deadline scheduling" | sed 's/^/warnings of scheduling: /'
journalctl --no-pager -o cat -u edgebgp | grep -o 'peer added.*'

echo "== firewall"
nft list table inet edge_host | grep -c "policy drop" | sed 's/^/chains that drop: /'
sed -i 's/host_firewall: {mode: on}/host_firewall: {mode: on, management_nets: [192.0.2.0\/24]}/' /etc/edge/edge.yaml
changed() { nft list table inet edge_host | grep -q "ip saddr 192.0.2.0/24 accept"; }
await "an edited file changes the rules" 20 changed
await "the daemons still answer" 20 answered

echo "== leave"
# What edge-leave does when the box goes down, and what is ordered after it.
left() {
	systemctl start edge-leave
	systemctl stop edge-leave
	echo "edge-leave: $(systemctl show -P Result edge-leave), drained: $(edgectl -o json status | python3 -c 'import json, sys; print("; ".join(d["reason"] for d in json.load(sys.stdin)["drains"]))')"
}
left
edgectl drain --reason "an upgrade" >/dev/null
left
edgectl undrain >/dev/null

echo "== again"
systemctl restart edged
await "edged takes over what it left" 30 answered
await "probe vip is up after it" 20 up vip
reloaded() { systemctl reload edged 2>/dev/null; } # a change may still be under way
await "edged is reloaded by its unit" 20 reloaded
systemctl restart edgeproxy
await "probe vip is up after the proxy" 20 up vip
mkdir -p /run/systemd/system/edged.service.d
few="CAP_BPF CAP_PERFMON CAP_NET_ADMIN"
printf '[Service]\nRestart=no\nCapabilityBoundingSet=\nAmbientCapabilities=\nCapabilityBoundingSet=%s\nAmbientCapabilities=%s\n' "$few" "$few" >/run/systemd/system/edged.service.d/few.conf
systemctl daemon-reload
systemctl restart edged 2>/dev/null && echo "edged does without CAP_SYS_ADMIN" || echo "edged needs CAP_SYS_ADMIN"
echo "== failed"
systemctl --no-legend --plain list-units --state=failed | grep edge
echo "== end"
