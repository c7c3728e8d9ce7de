#!/bin/sh
# Part of the test harness: a task for a Kubernetes control plane, in its network: control-plane ROOT ADDRESS REPOSITORY
# TASK [ARGUMENT...]. ROOT is its root directory, which has a line for each value of templates in the file `values`. A
# task that starts a program becomes it, with the remaining arguments as additional options.
set -euf
mkdir -p "$1"
cd "$1"
address=$2
repository=$3
vm=$3/tests/vm
task=$4
shift 4
server=$address:6443
# The port where an RKE2 server registers nodes.
registration=$address:9345
store=http://127.0.0.1:2379
admin=etc/kubernetes/super-admin.conf
pki=etc/kubernetes/pki

fail() {
    echo "$*" >&2
    exit 1
}
value() { echo "$1 $2" >>values; }
get() {
    found=$(sed -n "s/^$1 //p" values)
    echo "${found:?no value $1}"
}
kubectl() { chroot . kubectl --request-timeout=10s --kubeconfig "$admin" "$@"; }
phase() { chroot . kubeadm init phase "$@" --config /kubeadm.yaml; }

# The CA certificate in base64.
authority() {
    authority=$(sed -n 's/^ *certificate-authority-data: //p' "$admin")
    echo "${authority:?the kubeconfig of kubeadm contains no CA}"
}

# Waits for a part of the control plane, while other machines boot: WHAT COMMAND [ARGUMENT...]
wait_for() {
    what=$1
    shift
    end=$(($(date +%s) + 180))
    until "$@" >/dev/null; do
        [ "$(date +%s)" -lt "$end" ] || fail "$what is not ready"
        sleep 0.2
    done
}

listening() {
    listeners=$(ss -Hltn "sport = :$1") || fail "cannot list the listeners"
    [ -n "$listeners" ]
}

# Whether the cluster-info ConfigMap is signed for this token.
signed() {
    signature=$(kubectl get configmap cluster-info --namespace=kube-public \
        --output "jsonpath={.data.jws-kubeconfig-${1%%.*}}") && [ -n "$signature" ]
}

removed() {
    token=$(kubectl get "secret/bootstrap-token-${1%%.*}" --namespace=kube-system --ignore-not-found) && [ -z "$token" ]
}

case $task in
prepare)
    # Its files, keys and manifests, with the programs in a directory: PROGRAMS
    mkdir -p usr/bin tmp etc/kubernetes
    cp "$vm/runner/files/unavailable.sh" .
    for name in kubeadm kubectl kube-apiserver kube-controller-manager; do
        ln "$1/$name" usr/bin/
    done
    # One that joins, an expired one, and an unknown one.
    for name in join-token expired-token wrong-token; do
        token=$(chroot . kubeadm token generate)
        value "$name" "$token"
    done
    value api-server "$server"
    value rke2-server "$registration"
    version=$(chroot . kubeadm version --output=short)
    expired=$(get expired-token)
    sed -e "s|{{address}}|$address|" -e "s|{{port}}|${server#*:}|" -e "s|{{api-server}}|$server|" \
        -e "s|{{etcd}}|$store|" -e "s|{{version}}|$version|" -e "s|{{expired-token}}|$expired|" \
        "$vm/kubernetes/kubeadm.yaml" >kubeadm.yaml
    ! grep '{{' kubeadm.yaml || fail "kubeadm.yaml has a name without a value"
    for name in certs kubeconfig control-plane; do
        phase "$name" all
    done
    # Accepts every certificate, to query whether the API server is ready.
    sed 's/^ *certificate-authority-data:.*/    insecure-skip-tls-verify: true/' "$admin" >etc/kubernetes/no-check.conf
    ;;
admit)
    # Lets machines join, and creates the account of a node administrator.
    phase upload-config all
    phase bootstrap-token
    token=$(get join-token)
    wrong=$(get wrong-token)
    expired=$(get expired-token)
    command=$(chroot . kubeadm token create "$token" --print-join-command --kubeconfig "$admin")
    hash=$(printf '%s\n' "$command" | sed -n 's/.* \(sha256:[0-9a-f]*\).*/\1/p')
    value ca-hash "${hash:?kubeadm prints no CA hash}"
    value wrong-ca-hash "sha256:$(echo "${hash#sha256:}" | tr 0-9a-f 1-9a-f0)"
    authority=$(authority)
    value ca-certificate "$authority"
    # In the format of `k3s token create`.
    sum=$(sha256sum "$pki/ca.crt")
    value agent-token "K10${sum%% *}::$token"
    value wrong-agent-token "K10${sum%% *}::$wrong"
    kubectl apply --filename - <"$vm/kubernetes/node-manager.yaml"
    wait_for "the signature of the cluster-info ConfigMap" signed "$token"
    wait_for "the removal of the expired token" removed "$expired"
    ;;
equip)
    # Gives a machine the files of a node: MACHINE PROGRAMS PROGRAMS-FOR-PODS
    here=$1/usr/lib/testbed/cluster
    # Files that a kubelet reads but cannot write in a container, with the values that it needs.
    mkdir -p "$here/sys/kernel" "$here/sys/vm"
    echo 10 >"$here/sys/kernel/panic"
    echo 1 >"$here/sys/kernel/panic_on_oops"
    echo 1 >"$here/sys/vm/overcommit_memory"
    cp --preserve=mode "$admin" "$here/admin.conf"
    cp --preserve=mode "$2/kubectl" "$3/device-plugin" "$3/pause" "$3/plain-runc" "$here/"
    install -m 0644 "$repository/cloud-init/daemonset/daemonset.yaml" "$repository/cloud-init/daemonset/gpu-pod.yaml" "$here/"
    for name in make-image run-pods run-daemonset cluster-admin secret; do
        install -m 0755 "$vm/runner/files/$name.sh" "$1/usr/lib/testbed/$name"
    done
    install -D -m 0644 "$vm/kubernetes/bridge.conflist" "$1/etc/cni/net.d/10-bridge.conflist"
    ;;
image)
    # Gives it the container image of the release, with its program as version 1: MACHINE
    mkdir image
    cp --preserve=mode "$1/usr/local/bin/gpu-bootstrap" image/
    SOURCE_DATE_EPOCH=0 python3 "$repository/release/image.py" 1 test "$1/usr/lib/testbed/cluster/image.tar" \
        "x86_64=$PWD/image"
    ;;
token)
    # Writes a token: NAME FILE
    token=$(get "$1")
    printf '%s\n' "$token" | install -D -m 0600 /dev/stdin "$2"
    ;;
kubeconfig)
    # Creates a kubeconfig of the node administrator account: FILE
    token=$(kubectl create token node-manager --namespace=kube-system --duration=24h)
    authority=$(authority)
    install -D -m 0600 /dev/stdin "$1" <<END
apiVersion: v1
kind: Config
current-context: node-manager
clusters:
- name: test-bed
  cluster:
    certificate-authority-data: $authority
    server: https://$server
contexts:
- name: node-manager
  context:
    cluster: test-bed
    user: node-manager
users:
- name: node-manager
  user:
    token: $token
END
    ;;
node)
    # Gives a machine the certificate of its node and a kubelet: MACHINE NAME PROGRAMS
    kubeconfig=$(chroot . kubeadm kubeconfig user --config=/kubeadm.yaml --org=system:nodes "--client-name=system:node:$2")
    printf '%s\n' "$kubeconfig" | install -m 0600 /dev/stdin "$1/usr/lib/testbed/cluster/node.conf"
    cp --preserve=mode "$3/kubelet" "$1/usr/lib/testbed/cluster/kubelet"
    ;;
not-yet-valid)
    # Creates an API server certificate that is valid from tomorrow on, signed by the cluster CA for the existing key.
    cd "$pki"
    day=$(date -u -d tomorrow +%y%m%d%H%M%SZ)
    year=$(date -u -d 'next year' +%y%m%d%H%M%SZ)
    work=$(mktemp -d)
    trap 'rm -r "$work"' EXIT
    : >"$work/index"
    cat >"$work/ca.conf" <<END
[ca]
default_ca = one
[one]
database = $work/index
new_certs_dir = $work
rand_serial = yes
default_md = sha256
policy = any
copy_extensions = copy
[any]
commonName = supplied
END
    openssl req -new -key apiserver.key -subj /CN=kube-apiserver -addext "subjectAltName=IP:$address" -out "$work/request"
    openssl ca -batch -notext -config "$work/ca.conf" -cert ca.crt -keyfile ca.key \
        -startdate "$day" -enddate "$year" -in "$work/request" -out not-yet-valid.crt
    ;;
etcd)
    program=$1
    shift
    exec "$program" --data-dir="$PWD/etcd" --listen-client-urls=$store --advertise-client-urls=$store \
        --listen-peer-urls=http://127.0.0.1:2380 --logger=zap "$@"
    ;;
kube-apiserver | kube-controller-manager)
    # Its command in the manifest of kubeadm.
    manifest=etc/kubernetes/manifests/$task.yaml
    command=$(awk 'list && $1 != "-" { exit } list { print $2 } $1 == "-" && $2 == "command:" { list = 1 }' "$manifest")
    # shellcheck disable=SC2086
    set -- $command "$@"
    [ "${1-}" = "$task" ] || fail "$manifest has no command of $task"
    exec chroot . "$@"
    ;;
unavailable)
    # Returns 503 instead of the API server.
    exec socat "OPENSSL-LISTEN:${server#*:},reuseaddr,fork,verify=0,cert=$pki/apiserver.crt,key=$pki/apiserver.key" \
        "EXEC:/bin/sh unavailable.sh"
    ;;
rke2-server)
    # Registers RKE2 nodes: the fake agent sends the same request there that it sends to the k3s server at the API
    # server's port.
    exec socat "TCP-LISTEN:${registration#*:},bind=$address,reuseaddr,fork" "TCP:$server"
    ;;
ready)
    # Waits until such a program accepts requests: PROGRAM
    case $1 in
    kube-apiserver)
        wait_for "the API server" kubectl --kubeconfig etc/kubernetes/no-check.conf get --raw /readyz
        ;;
    unavailable) wait_for "the server that returns 503" listening "${server#*:}" ;;
    rke2-server) wait_for "the RKE2 node registration" listening "${registration#*:}" ;;
    esac
    ;;
*) fail "an unknown task: $task" ;;
esac
