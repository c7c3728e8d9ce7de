#!/bin/sh
# Part of the test harness: prints how long DKMS compiled, with the keys of `gpu-bootstrap status --timing --format json`,
# for methods without gpu-bootstrap. The second line of a build's log is its start, and its last change is its end.
set -eu
printf '{"timing":{"spans":['
first=
for log in /var/lib/dkms/*/*/*/*/log/make.log; do
    [ -e "$log" ] || continue
    begin=$(date -d "$(sed -n 2p "$log")" +%s)
    end=$(stat -c %Y "$log")
    [ -z "$first" ] || printf ,
    : "${first:=$begin}"
    name=${log#/var/lib/dkms/}
    printf '{"begins":%d,"seconds":%d,"what":"build kernel module %s"}' "$((begin - first))" "$((end - begin))" "${name%%/*}"
done
echo ']}}'
