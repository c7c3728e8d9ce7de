#!/bin/sh
# Part of the test bed: kubectl with all rights, for a machine beside a control plane.
exec /usr/lib/testbed/cluster/kubectl --kubeconfig=/usr/lib/testbed/cluster/admin.conf "$@"
