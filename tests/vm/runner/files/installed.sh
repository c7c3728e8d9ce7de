#!/bin/sh
# Part of the test harness: succeeds if a package is installed, in a version with this prefix.
set -eu
if command -v dpkg-query >/dev/null; then
    dpkg-query -W -f '${db:Status-Status} ${Version}\n' "$1" | grep -q "^installed ${2-}"
else
    # It also lists packages that are not installed.
    rpm -q "$1" >/dev/null
    rpm -q --qf '%{VERSION}-%{RELEASE}\n' "$1" | grep -q "^${2-}"
fi
