#!/bin/bash
# Prints the version that a build is of: version.sh VERSION, or the text of the file
# VERSION beside it. One form is for the image and for the package: digits and dots,
# and perhaps what comes before such a version, as 1.2.0~rc1. 1.2.0-rc1 is taken for
# the same: behind a dash systemd-boot and dpkg would hold it for newer than 1.2.0.
set -euo pipefail
version=${1:-$(cat "$(dirname "$0")/VERSION")}
if ! [[ $version =~ ^[0-9]+(\.[0-9]+)*([-~][0-9A-Za-z]+(\.[0-9A-Za-z]+)*)?$ ]] || [ ${#version} -gt 64 ]; then
	echo "version \"$version\": digits and dots, as 1.2.0; 1.2.0~rc1 is what comes before it" >&2
	exit 1
fi
tilde="~" # bare, it is a home directory
echo "${version/-/$tilde}"
