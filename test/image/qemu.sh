#!/bin/bash
# Makes DIR/qemu, the qemu of Debian 13 for an older Debian: qemu.sh DIR. It emulates
# a third faster, and the instructions for SHA-256, which each page of a root and each
# byte of an update go through. It runs with the libraries of its own Debian, in place.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(realpath "$1")/root
TOOLS_PACKAGES=qemu-system-x86 "$here/../../image/tools.sh" "$root"
cat >"$1/qemu" <<END
#!/bin/sh
exec $root/lib64/ld-linux-x86-64.so.2 --library-path $root/usr/lib/x86_64-linux-gnu $root/usr/bin/qemu-system-x86_64 -L $root/usr/share/qemu "\$@"
END
chmod 755 "$1/qemu"
"$1/qemu" --version
