#!/bin/sh
# Part of the test harness: leave-free DIRECTORY MIB fills the filesystem of a directory with one file, so that about this
# much stays free. With 0 it is completely full, including the space reserved for root.
set -eu
file=$1/filled-by-the-bed
free=$(df --output=avail -B 1M "$1" | tail -n 1)
if [ "$2" = 0 ]; then
    [ "$free" -lt 2 ] || fallocate -l "$((free - 1))M" "$file"
    cat /dev/zero >>"$file" 2>/dev/null || true
else
    [ "$free" -gt "$2" ]
    fallocate -l "$((free - $2))M" "$file"
fi
df -h "$1"
