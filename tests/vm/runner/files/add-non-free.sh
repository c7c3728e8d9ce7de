#!/bin/sh
# Part of the test bed: adds the components that have the driver to apt's sources, of the release
# alone. The security suite has libraries of another version than the open module's.
set -eu
awk -v RS= '!/security/' /etc/apt/sources.list.d/debian.sources |
    sed 's/^Components: main$/Components: contrib non-free non-free-firmware/' >/etc/apt/sources.list.d/non-free.sources
