#!/bin/bash
# Runs in what order.sh has booted: order-check.sh DIR CASE says what is the case, a
# line each.
set -uo pipefail
dir=$1 case=$2
off() {
	echo "== end"
	systemctl --force --force poweroff
}
# await SECONDS WHAT COMMAND...: until it succeeds.
await() {
	local end=$((SECONDS + $1)) what=$2
	shift 2
	until "$@"; do
		[ $SECONDS -lt $end ] || {
			echo "not in time: $what"
			systemctl list-jobs
			off
			exit
		}
		sleep 0.1
	done
	echo "$what"
}
is() { [ "$(systemctl show -P "$1" "$2")" = "$3" ]; }
said() { grep -qx "$1" "$dir/said"; }
case $case in
stay)
	await 90 "multi-user.target is reached" is ActiveState multi-user.target active
	await 20 "it is judged" is ActiveState edge-health.service activating
	await 20 "the dead man's switch has run" said "deadman runs"
	echo "system: $(systemctl is-system-running), complete: $(systemctl is-active boot-complete.target), jobs of targets: $(systemctl list-jobs --no-legend | grep -c 'target' )"
	touch /run/good
	await 20 "boot-complete.target is reached" is ActiveState boot-complete.target active
	for unit in systemd-bless-boot edge-resume edge-good; do await 20 "$unit has run" is ActiveState $unit.service active; done
	await 20 "no jobs are left" bash -c '! systemctl list-jobs --no-legend | grep -q .'
	off ;;
reboot)
	await 90 "multi-user.target is reached" is ActiveState multi-user.target active
	await 20 "it is judged" said "edgectl appliance health"
	echo "== end"
	systemctl reboot ;;
hang | emergency)
	await 90 "the dead man's switch has run" said "deadman runs"
	echo "multi-user: $(systemctl is-active multi-user.target), sysinit: $(systemctl is-active sysinit.target), emergency: $(systemctl is-active emergency.target)"
	off ;;
esac
