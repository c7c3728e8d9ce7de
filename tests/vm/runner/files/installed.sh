#!/bin/sh
# Part of the test bed: succeeds if a package is installed, in a version that begins so.
set -eu
if command -v dpkg-query >/dev/null; then
    dpkg-query -W -f '${db:Status-Status} ${Version}\n' "$1" | grep -q "^installed ${2-}"
else
    # It prints that a package is not installed, too.
    rpm -q "$1" >/dev/null
    rpm -q --qf '%{VERSION}-%{RELEASE}\n' "$1" | grep -q "^${2-}"
fi
