#!/bin/sh
# Part of the test harness: prints where a method spent its time, as JSON documents for `timing-of`: the steps, from
# gpu-bootstrap or, for other methods, from the logs of DKMS, and the actions of the package manager, from its log, whose
# times are in seconds.
set -eu

# The second line of a DKMS log is the start of the build, its last change is the end. Only Debian's driver is real.
builds() {
    printf '{"timing":{"spans":['
    first=
    for log in /var/lib/dkms/nvidia-current/*/*/*/log/make.log; do
        [ -e "$log" ] || continue
        begin=$(date -d "$(sed -n 2p "$log")" +%s)
        end=$(stat -c %Y "$log")
        [ -z "$first" ] || printf ,
        : "${first:=$begin}"
        printf '{"begins":%d,"seconds":%d,"what":"build kernel module"}' "$((begin - first))" "$((end - begin))"
    done
    echo ']}}'
}

if [ -d /var/lib/gpu-bootstrap ]; then
    gpu-bootstrap status --timing --format json
else
    builds
fi
for log in /var/log/dpkg.log /var/log/dnf.rpm.log; do
    [ ! -s "$log" ] || sed -e 's/T\([0-9:]*\)+[0-9]*/ \1/' "$log"
done | awk '
    {
        split($2, time, ":")
        now = time[1] * 3600 + time[2] * 60 + time[3]
    }
    # dnf logs the end of an action. Before the first one, it downloads.
    $3 == "SUBDEBUG" && kind == $3 { label = "install " $5; sub(/-[0-9].*/, "", label) }
    # The first line of a run of dpkg: before it, dpkg did nothing.
    $3 != "startup" && $4 != "triggers-pending" && label != "" && now > last { spent[label] += now - last }
    { last = now; kind = $3 }
    $3 == "startup" { label = "" }
    $3 == "install" || $3 == "upgrade" { label = "unpack" }
    $3 == "configure" || $3 == "trigproc" { label = $3 " " $4; sub(/:.*/, "", label) }
    $3 == "SUBDEBUG" { label = "" }
    END {
        printf "{\"packages\":["
        for (label in spent) {
            printf "%s{\"what\":\"%s\",\"seconds\":%d}", separator, label, spent[label]
            separator = ","
        }
        print "]}"
    }'
