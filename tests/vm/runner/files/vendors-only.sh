#!/bin/sh
# Part of the test bed: removes Debian's archive from apt's sources; it is most of what a case downloads. For
# dnf all repositories are the bed's.
rm -f /etc/apt/sources.list.d/debian.sources
