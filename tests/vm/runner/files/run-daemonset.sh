#!/bin/sh
# Part of the test harness: runs a pod of the DaemonSet on this node: API-SERVER. A binding and an iptables rule replace
# the scheduler and kube-proxy. The image is the one of the release, with the program of the machine.
set -eu
bed=/usr/lib/testbed
admin=$bed/cluster-admin
$bed/run-pods
ctr --namespace k8s.io images import --base-name localhost/gpu-bootstrap $bed/cluster/image.tar
iptables -t nat -A OUTPUT -d 10.96.0.1 -p tcp --dport 443 -j DNAT --to-destination "$1"
$admin get namespace gpu-bootstrap >/dev/null 2>&1 || $admin create namespace gpu-bootstrap
sed 's|"@REGISTRY.*@"|localhost/gpu-bootstrap:1|' $bed/cluster/daemonset.yaml | $admin apply --filename=-
pods="$admin get pods --namespace=gpu-bootstrap --output=jsonpath={.items[*].metadata.name}"
timeout 30 sh -c "until [ -n \"\$($pods)\" ]; do sleep 0.2; done"
pod=$($pods)
echo '{"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "'"$pod"'"},
    "target": {"apiVersion": "v1", "kind": "Node", "name": "'"$(hostname)"'"}}' |
    $admin create --raw "/api/v1/namespaces/gpu-bootstrap/pods/$pod/binding" --filename=-
