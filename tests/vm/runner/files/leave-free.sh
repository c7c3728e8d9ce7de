#!/bin/sh
# Part of the test bed: fills the filesystem of a directory with one file, so that this many MiB stay free.
set -eu
free=$(df --output=avail -B 1M "$1" | tail -n 1)
[ "$free" -gt "$2" ]
fallocate -l "$((free - $2))M" "$1/filled-by-the-bed"
df -h "$1"
