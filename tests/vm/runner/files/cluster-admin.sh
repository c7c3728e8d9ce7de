#!/bin/sh
# Part of the test harness: kubectl with all permissions, for a machine next to a control plane.
exec /usr/lib/testbed/cluster/kubectl --kubeconfig=/usr/lib/testbed/cluster/admin.conf "$@"
