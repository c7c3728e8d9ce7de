#!/bin/sh
# Part of the test harness: downloads a file, and removes it if its SHA-256 checksum differs: download URL FILE [CHECKSUM]
set -eu
# A list from an unprotected connection would verify nothing.
curl --fail --location --silent --show-error --proto '=https,file' --proto-redir '=https' --retry 3 --output "$2" "$1" || {
    rm -f "$2"
    echo "cannot download $1" >&2
    exit 1
}
[ $# -gt 2 ] || exit 0
found=$(sha256sum "$2")
if [ "${found%% *}" != "$3" ]; then
    rm "$2"
    echo "its SHA-256 checksum is ${found%% *}, but the list contains $3" >&2
    exit 1
fi
