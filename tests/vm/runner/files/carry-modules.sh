#!/bin/sh
# Part of the test harness: copies compiled modules, and the DKMS override that uses them, into the root of a machine:
# carry-modules ROOT MODULES
set -eu
mkdir -p "$1/usr/lib/testbed/modules" "$1/etc/dkms"
cp -a --reflink=auto "$2/." "$1/usr/lib/testbed/modules"
# NVIDIA's module has two names in Debian: the proprietary one and the open one. DKMS reads this after a module's own
# configuration, and defines variables such as `PACKAGE_NAME`. It is one line without glob patterns, because DKMS expands
# the words again when it passes them on.
for name in nvidia-current nvidia-current-open; do
    cat >"$1/etc/dkms/$name.conf" <<'END'
# The test bed carries compiled modules; any other version is compiled.
carried=/usr/lib/testbed/modules/$PACKAGE_NAME-$PACKAGE_VERSION/$kernelver
MAKE[0]="if test -d $carried; then cp -r $carried/. .; else ${MAKE[0]}; fi"
END
done
