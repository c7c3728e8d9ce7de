#!/bin/sh
# Part of the test harness: writes a container image with busybox and its links to the file probe.tar of the current
# directory: probe-image NAME
set -eu
mkdir -p rootfs/bin rootfs/etc rootfs/tmp rootfs/usr/lib rootfs/lib64 rootfs/proc rootfs/sys rootfs/dev archive
cp "$(command -v busybox)" rootfs/bin/busybox
for name in $(rootfs/bin/busybox --list); do [ "$name" = busybox ] || ln -s busybox "rootfs/bin/$name"; done
# What a program needs to load a library of the host: the loader and the C library.
for file in /lib64/ld-linux-x86-64.so.2 /lib/x86_64-linux-gnu/libc.so.6; do
    mkdir -p "rootfs$(dirname "$file")"
    cp -L "$file" "rootfs$file"
done
echo 'root:x:0:0:root:/:/bin/sh' >rootfs/etc/passwd
echo 'root:x:0:' >rootfs/etc/group
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C rootfs -cf archive/layer.tar .
digest=$(sha256sum archive/layer.tar)
printf %s '{"architecture":"amd64","os":"linux","created":"2026-01-01T00:00:00Z",' \
    '"config":{"Env":["PATH=/bin"],"Cmd":["/bin/sh"]},' \
    '"rootfs":{"type":"layers","diff_ids":["sha256:'"${digest%% *}"'"]}}' >archive/config.json
printf %s '[{"Config":"config.json","RepoTags":["'"$1"'"],"Layers":["layer.tar"]}]' >archive/manifest.json
tar -C archive -cf probe.tar manifest.json config.json layer.tar
rm -r archive rootfs
