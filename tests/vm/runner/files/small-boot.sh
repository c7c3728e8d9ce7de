#!/bin/sh
# Part of the test bed: gives the machine a /boot of its own, with room for so many KiB more.
set -eu
here=/root/boot
mkdir "$here"
cp -a /boot/. "$here/"
mount -t tmpfs -o "size=$(($(du -sk /boot | cut -f1) + $1))k" tmpfs /boot
cp -a "$here/." /boot/
