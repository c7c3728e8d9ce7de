#!/bin/sh
# Part of the test bed, in a machine that stands for one in a cloud: answers as on such a machine, which is no container.
quiet=
what=kvm
for word; do
    case $word in
    -q | --quiet) quiet=1 ;;
    -c | --container) what=none ;;
    esac
done
[ -n "$quiet" ] || echo $what
[ $what != none ]
