#!/bin/bash
# Boots systemd with the units that judge a boot, and an edgectl that only says what it
# was called for: order.sh DIR TREE CASE. It is called as boot.sh is. What is said comes
# in DIR/said.
set -euo pipefail
dir=$1 tree=$2 case=$3
. "$tree/testdata/root.sh"
cp -R --no-preserve=ownership "$tree/appliance/usr" "$root/"
rm -rf "$root/etc/systemd/system" "$root/etc/init.d" "$root"/etc/rc?.d # none of the services of the machine
units=$root/etc/systemd/system
mkdir -p "$units"/{multi-user,sysinit,basic}.target.wants "$root/var/lib/edge-image" "$root$dir"
touch "$root/var/lib/edge-image/upgrade.json"
mount --bind "$dir" "$root$dir"
for unit in systemd-logind systemd-timesyncd systemd-udevd systemd-sysctl systemd-binfmt systemd-random-seed systemd-modules-load systemd-networkd systemd-resolved; do
	ln -s /dev/null "$units/$unit.service"
done
ln -s /dev/null "$units/tmp.mount"
# As the preset does.
for unit in edge-health edge-resume edge-good; do ln -s "/usr/lib/systemd/system/$unit.service" "$units/multi-user.target.wants/"; done
ln -s /usr/lib/systemd/system/edge-deadman.timer "$units/sysinit.target.wants/"
mkdir -p "$units/boot-complete.target.requires"
ln -s /usr/lib/systemd/system/edge-health.service "$units/boot-complete.target.requires/"

# unit NAME: a unit from standard input.
unit() { cat >"$units/$1"; }
install -m 0755 /dev/stdin "$root/usr/bin/edgectl" <<SCRIPT
#!/bin/bash
echo "edgectl \$*" >>$dir/said
[ "\$2" = health ] || exit 0
trap 'echo "health is ended" >>$dir/said; exit 1' TERM
until [ -e /run/good ]; do read -rt 0.1 <> <(:) || :; done
SCRIPT
# The walls are those of boot.sh's test: here /run and what is said have to be reached.
for unit in edge-health edge-resume edge-good; do
	mkdir -p "$units/$unit.service.d"
	printf '[Service]\nProtectSystem=no\nPrivateTmp=no\nStandardOutput=journal\nStandardError=journal\n' >"$units/$unit.service.d/open.conf"
done
# As systemd has it (and Debian 12 not).
unit systemd-bless-boot.service <<UNIT
[Unit]
DefaultDependencies=no
Requires=boot-complete.target
After=local-fs.target boot-complete.target
Conflicts=shutdown.target
Before=shutdown.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'echo blessed >>$dir/said'
UNIT
ln -s ../systemd-bless-boot.service "$units/basic.target.wants/"
# The real script is tested elsewhere; here, whether it comes to run.
mkdir -p "$units"/edge-deadman.{timer,service}.d
printf '[Timer]\nOnBootSec=\nOnBootSec=4s\nAccuracySec=100ms\n' >"$units/edge-deadman.timer.d/10-test.conf"
cat >"$units/edge-deadman.service.d/10-test.conf" <<UNIT
[Service]
ExecStart=
ExecStart=/bin/sh -c 'echo "deadman runs" >>$dir/said'
StandardOutput=journal
StandardError=journal
UNIT

unit check.service <<UNIT
[Unit]
DefaultDependencies=no
[Service]
Type=simple
ExecStart=/bin/bash $tree/testdata/order-check.sh $dir $case
StandardOutput=append:$dir/said
StandardError=inherit
IgnoreSIGPIPE=no
UNIT
sed -i 's/^DefaultDependencies=no/&\nIgnoreOnIsolate=yes/' "$units/check.service"
ln -s ../check.service "$units/sysinit.target.wants/"
case $case in
hang) # a job that never ends
	unit hang.service <<UNIT
[Unit]
DefaultDependencies=no
Before=sysinit.target
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/bin/sleep infinity
UNIT
	ln -s ../hang.service "$units/sysinit.target.wants/" ;;
emergency) # as a file system of fstab that cannot be mounted
	unit broken.service <<UNIT
[Unit]
DefaultDependencies=no
Before=local-fs.target sysinit.target
OnFailure=emergency.target
OnFailureJobMode=replace-irreversibly
[Service]
Type=oneshot
ExecStart=/bin/false
UNIT
	mkdir -p "$units/sysinit.target.requires"
	ln -s ../broken.service "$units/sysinit.target.requires/"
	unit emergency.service <<UNIT
[Unit]
DefaultDependencies=no
Conflicts=shutdown.target
[Service]
ExecStart=/bin/sleep infinity
UNIT
	;;
esac
enter
