#!/bin/sh
# Part of the test harness: adds the components with the driver to apt's sources, only for the release suite, because
# the libraries of the security suite have another version than the open module.
set -eu
awk -v RS= '!/security/' /etc/apt/sources.list.d/debian.sources |
    sed 's/^Components: main$/Components: contrib non-free non-free-firmware/' >/etc/apt/sources.list.d/non-free.sources
