#!/bin/sh
# Part of the test harness: mounts a separate /boot with this many KiB of free space.
set -eu
here=/root/boot
mkdir "$here"
cp -a /boot/. "$here/"
mount -t tmpfs -o "size=$(($(du -sk /boot | cut -f1) + $1))k" tmpfs /boot
cp -a "$here/." /boot/
