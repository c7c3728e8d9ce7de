#!/bin/sh
# Part of the test bed: gives containers the inventory of the stand-ins as it is now. They have nothing of the machine but
# the libraries, so it is put at their end.
set -eu
for link in /usr/lib/x86_64-linux-gnu /usr/lib64; do
    for name in libcuda libnvidia-ml; do
        [ -e "$link/$name.so.1" ] || continue
        {
            printf '\n# inventory of the stand-in\n'
            cat /usr/lib/testbed/standin-nvml.toml
        } >>"$(readlink -f "$link/$name.so.1")"
    done
done
