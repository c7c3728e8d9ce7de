#!/bin/sh
# Part of the test harness, in a simulated cloud instance: returns the same values as a real instance, which is not a
# container.
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
