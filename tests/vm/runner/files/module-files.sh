#!/bin/sh
# Part of the test harness: copies a file of a Go module to the current directory: module-files MODULE@VERSION PATH.
set -eu
here=$PWD

# Go verifies it with its public checksum database.
cd /
answer=$(timeout 300 go mod download -json "$1") || {
    printf '%s\n' "$answer" >&2
    exit 1
}
directory=$(printf '%s\n' "$answer" | sed -n 's/^[[:space:]]*"Dir": "\(.*\)",\{0,1\}$/\1/p')
: "${directory:?the output of go contains no module directory}"
install -m 0644 "$directory/$2" "$here/"
