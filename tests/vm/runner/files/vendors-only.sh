#!/bin/sh
# Part of the test harness: removes Debian's archive from apt's sources, because it is most of the download of a case.
# With dnf all repositories belong to the harness.
rm -f /etc/apt/sources.list.d/debian.sources
