#!/bin/bash
# Makes more versions of an image that make image has built, within a minute:
# remake.sh IMAGE_DIR OUT VERSION[=FAULT]... writes a payload for each to OUT/VERSION.
# The first version has the root of the image with other bytes in it (its version);
# all others share that root too, and a FAULT (see testdata/broken) is a word of
# their kernel command line. All are signed with the test key of the build.
# CACHE has the tools root of image/tools.sh; PROFILE is cloud if not set. With WHOLE=yes
# the root keeps Python, which Ansible needs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
image=$here/../../image
built=$(realpath "$1") out=$2 profile=${PROFILE:-cloud}
shift 2
if [ "${REMAKE_UNSHARED:-}" != yes ]; then
	REMAKE_UNSHARED=yes exec unshare --mount --propagation private "$0" "$built" "$out" "$@"
fi
work=/tmp/edge-image-remake # of this mount namespace alone
mkdir -p "$work" "$out"
mount -t tmpfs -o mode=0755,size=6G edge-remake "$work"
mkdir "$work/out"
tools() { "$image/inroot" "$work/tools" -b "$work:/work" -- "$@"; }

"$image/tools.sh" "$work/tools"
(cd "$here/../.." && CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$work/publish" ./image/publish)
cp "$built"/keys/current.{key,crt} "$work/"
cp -R "$here/testdata/broken" "$work/broken"
for part in root efi; do zstd -q -d -o "$work/$part" "$built/payload_$profile"/edge_*."$part".zst; done

# The kernel, the initrd and the command line of the image.
for section in linux initrd cmdline osrel uname; do
	objcopy -O binary --only-section=".$section" --set-section-flags ".$section=contents,alloc,load,readonly" "$work/efi" "$work/$section" 2>/dev/null
done
tr -d '\0' <"$work/cmdline" >"$work/words"

first=${1%%=*}
needless='usr/lib/udev/hwdb.bin usr/bin/perl* usr/share/doc usr/share/perl5 usr/share/python3 usr/share/mime usr/share/fish usr/share/zoneinfo'
[ "${WHOLE:-}" = yes ] || needless+=' usr/lib/python3* usr/bin/python3*'
cat >"$work/root.sh" <<EOF
set -euo pipefail
fsck.erofs --extract=/work/tree --xattrs /work/root >/dev/null
cd /work/tree
sed -i 's/^IMAGE_VERSION=.*/IMAGE_VERSION=$first/' usr/lib/os-release
mkdir -p usr/lib/edge-broken usr/lib/systemd/system/sysinit.target.wants usr/lib/systemd/system/edge-health.service.d
install -m 0755 /work/broken/break /work/broken/crash usr/lib/edge-broken/
# An emulated machine hashes 20 MB a second: without what nothing of the test needs.
rm -rf $needless
cp /work/broken/edge-broken.service usr/lib/systemd/system/
ln -s ../edge-broken.service usr/lib/systemd/system/sysinit.target.wants/
# Nobody waits three minutes for each version that cannot become good.
install -m 0755 /work/broken/health usr/lib/edge-broken/
printf '[Service]\nExecStart=\nExecStart=/usr/lib/edge-broken/health\n' >usr/lib/systemd/system/edge-health.service.d/50-test.conf
mkfs.erofs --quiet -zlz4 -T0 -U 5c0f1f7a-0b6b-4d2e-9a3c-4f4c8d0e5b5f /work/root.new /work/tree
veritysetup format --salt=$(printf '%064d' 7) --uuid=5c0f1f7a-0b6b-4d2e-9a3c-4f4c8d0e5b50 /work/root.new /work/verity.new |
	sed -n 's/^Root hash:[[:space:]]*//p' >/work/roothash
EOF
tools bash /work/root.sh
hash=$(cat "$work/roothash")
[ ${#hash} = 64 ] || { echo "remake: no root hash" >&2; exit 1; }

for spec in "$@"; do
	version=${spec%%=*} fault=${spec#"$version"}
	sed -E "s/roothash=[0-9a-f]+/roothash=$hash/; s/edge\.version=[^ ]+/edge.version=$version/" "$work/words" | tr -d '\n' >"$work/words.$version"
	[ -z "$fault" ] || printf ' edge.broken%s' "$fault" >>"$work/words.$version"
	tr -d '\0' <"$work/osrel" | sed "s/^IMAGE_VERSION=.*/IMAGE_VERSION=$version/" >"$work/osrel.$version"
	tools ukify build --linux=/work/linux --initrd=/work/initrd --uname="$(tr -d '\0' <"$work/uname")" \
		--cmdline="@/work/words.$version" --os-release="@/work/osrel.$version" \
		--secureboot-private-key=/work/current.key --secureboot-certificate=/work/current.crt --no-sign-kernel \
		--output="/work/uki.$version" >/dev/null
	if [ "$version" = "$first" ]; then
		tools /work/publish payload -version "$version" -profile "$profile" -uki "/work/uki.$version" \
			-root /work/root.new -verity /work/verity.new -key /work/current.key -cert /work/current.crt -out "/work/out/$version"
		continue
	fi
	cp -al "$work/out/$first" "$work/out/$version"
	rm "$work/out/$version/edge_$first.efi.zst" "$work/out/$version"/manifest.json*
	zstd -q -3 -o "$work/out/$version/edge_$version.efi.zst" "$work/uki.$version"
	tools python3 - /work "$first" "$version" <<'EOF'
import hashlib, json, sys
work, first, version = sys.argv[1:]
m = json.load(open(f"{work}/out/{first}/manifest.json"))
m["version"] = version
plain, packed = open(f"{work}/uki.{version}", "rb").read(), open(f"{work}/out/{version}/edge_{version}.efi.zst", "rb").read()
for f in m["files"]:
    if f["part"] == "uki":
        f.update(name=f"edge_{version}.efi.zst", size=len(plain), sha256=hashlib.sha256(plain).hexdigest(),
                 packed_size=len(packed), packed_sha256=hashlib.sha256(packed).hexdigest())
json.dump(m, open(f"{work}/out/{version}/manifest.json", "w"), indent=2)
EOF
	openssl dgst -sha256 -sign "$work/current.key" -out "$work/out/$version/manifest.json.sig" "$work/out/$version/manifest.json"
done
cp -a "$work/out/." "$out/"
