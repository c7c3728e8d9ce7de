#!/bin/sh
# Part of the test harness: succeeds if the package database is consistent.
set -eu
if command -v dpkg >/dev/null; then
    test -z "$(dpkg --audit)"
else
    rpmdb --verifydb >/dev/null
    dnf -q -C --disablerepo='*' check
fi
