#!/bin/sh
# Part of the test harness: enables pods on this node. It gives containerd the pause image, under the name in its
# configuration, and a runc that requests no cgroups.
set -eu
here=/usr/lib/testbed/cluster
install -m 0755 "$here/plain-runc" /usr/local/sbin/runc
pause=$(containerd config dump | sed -n 's/^ *sandbox\(_image\)\? = ["'\'']\(.*\)["'\'']$/\2/p')
mkdir -p /run/testbed-pause
cp "$here/pause" /run/testbed-pause/pause
/usr/lib/testbed/make-image "${pause:?the containerd configuration contains no pause image}" /run/testbed-pause /pause
rm -r /run/testbed-pause
