# Sourced by build.sh: from what mkosi made to what leaves the build.
# shellcheck shell=bash disable=SC2154 # its variables come from build.sh
name=edge_${VERSION}_$profile
result=$work/result
mkdir -p "$result"

# Nothing of one box alone, no secret: else it does not leave the build.
mkdir -p "$work/scan/esp"
tools fsck.erofs --extract=/build/scan/root /build/out/edge.root.raw >/dev/null
read -r start sectors < <(tools sfdisk -d /build/out/edge.raw | sed -n '/name="edge-esp"/s/.*start= *\([0-9]*\), size= *\([0-9]*\),.*/\1 \2/p')
tools mcopy -s -n -i "/build/out/edge.raw@@$((start * 512))" ::/ /build/scan/esp/
tools /build/bin/publish scan -root /build/scan/root -esp /build/scan/esp
rm -rf "$work/scan"

mv "$work/out/edge.raw" "$result/$name.raw"
mv "$work/out/edge.manifest" "$result/$name.manifest"
tools qemu-img convert -f raw -O qcow2 -c -o compression_type=zstd "/build/result/$name.raw" "/build/result/$name.qcow2"
tools /build/bin/publish payload -version "$VERSION" -profile "$profile" -commit "$commit" -time "$epoch" \
	-esp "$((sectors * 512))" -uki /build/out/edge.efi -root /build/out/edge.root.raw -verity /build/out/edge.verity.raw \
	-key "$sign_key" -cert /build/keys/current.crt -out "/build/result/payload_$profile"
tools /build/bin/publish sbom -name "$name" -commit "$commit" -time "$epoch" -packages "/build/result/$name.manifest" \
	-out "/build/result/$name.spdx.json" /build/bin/{edged,edgebgp,edgeproxy,edgectl}

{
	echo "$name, in bytes:"
	bytes() { printf '%12d  %s\n' "$1" "$2"; }
	bytes "$(du -B1 "$result/$name.raw" | cut -f1)" "disk image, on disk"
	bytes "$(stat -c %s "$result/$name.raw")" "disk image, as long as it looks"
	bytes "$(stat -c %s "$result/$name.qcow2")" "qcow2"
	bytes "$(stat -c %s "$work/out/edge.efi")" "UKI: kernel and initrd"
	sed -nE 's/.*"part": "(.*)".*/\1/p; s/.*"(size|packed_size)": ([0-9]+).*/\2/p' "$result/payload_$profile/manifest.json" |
		paste - - - | while read -r part size packed; do
		bytes "$size" "$part"
		bytes "$packed" "$part, as it is sent"
	done
	bytes "$(grep -c '"type": "deb"' "$result/$name.manifest")" "packages (a number)"
} | tee "$result/$name.sizes" >&2

# The names last: what has one is whole.
new=$OUT/.new
rm -rf "$new"
cp -R --sparse=always "$result" "$new"
rm -rf "${OUT:?}/$name".* "$OUT/payload_$profile" "$OUT/SIZES"
mv "$new"/* "$OUT/"
rmdir "$new"
cat "$OUT"/*.sizes >"$OUT/SIZES"
