#!/bin/sh
# Part of the test harness: creates a network namespace next to that of a machine, and connects both by a pair of virtual
# cards (veth): network-beside FILE MACHINE ADDRESS MACHINE-ADDRESS/PREFIX. FILE keeps the namespace alive.
set -eu
there=$1
here=$2
in_namespace() {
    file=$1
    shift
    nsenter --net="$file" -- ip "$@"
}
unshare --net="$there" true
in_namespace "$here" link add cluster type veth peer name cluster-end
in_namespace "$here" link set cluster-end netns "$there"
in_namespace "$here" addr add "$4" dev cluster
in_namespace "$here" link set cluster up
in_namespace "$there" addr add "$3/${4#*/}" dev cluster-end
in_namespace "$there" link set cluster-end up
in_namespace "$there" link set lo up
# A kubelet is queried at the address that it reports, which may differ from its card's address.
in_namespace "$there" route add default via "${4%/*}"
