#!/bin/sh
# Part of the test bed: from now on this node runs pods. It gives containerd the pause image, under the name that its
# configuration has, and a runc that asks for no control groups.
set -eu
here=/usr/lib/testbed/cluster
install -m 0755 "$here/plain-runc" /usr/local/sbin/runc
pause=$(containerd config dump | sed -n 's/^ *sandbox\(_image\)\? = ["'\'']\(.*\)["'\'']$/\2/p')
mkdir -p /run/testbed-pause
cp "$here/pause" /run/testbed-pause/pause
/usr/lib/testbed/make-image "${pause:?containerd names no pause image}" /run/testbed-pause /pause
rm -r /run/testbed-pause
