#!/bin/sh
# Part of the test harness: updates the inventory of the fakes in containers. Containers get only the libraries, so the
# inventory is appended to them.
set -eu
for link in /usr/lib/x86_64-linux-gnu /usr/lib64; do
    for name in libcuda libnvidia-ml; do
        [ -e "$link/$name.so.1" ] || continue
        {
            printf '\n# inventory of the fake\n'
            cat /usr/lib/testbed/fake-nvml.toml
        } >>"$(readlink -f "$link/$name.so.1")"
    done
done
