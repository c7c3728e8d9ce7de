#!/usr/bin/python3
"""Part of the test harness: replaces `bootstrap.sh` of Canonical's EKS images.

Modeled on the published script (Canonical's version of Amazon's script, 2020 and later, from public repositories). It has the same
options, fills in the kubeconfig, replaces the containerd configuration and restarts containerd, configures the snap `kubelet-eks`,
and starts it. It is stricter than the real script: it rejects unknown options, which the real script would use as the cluster
name, and requires the endpoint and the CA certificate, which the real script would otherwise request from the EKS API.
"""
import base64
import json
import subprocess
import sys
import urllib.request

OPTIONS = ["--use-max-pods", "--b64-cluster-ca", "--apiserver-endpoint", "--kubelet-extra-args", "--enable-docker-bridge",
           "--aws-api-retry-attempts", "--docker-config-json", "--pause-container-account", "--pause-container-version",
           "--dns-cluster-ip", "--container-runtime", "--ip-family", "--service-ipv6-cidr"]
KUBECONFIG, AUTHORITY = "/var/lib/kubelet/kubeconfig", "/etc/kubernetes/pki/ca.crt"


def run(*words):
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


def metadata(path):
    request = urllib.request.Request("http://169.254.169.254/latest/api/token", method="PUT",
                                     headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    token = urllib.request.urlopen(request, timeout=10).read().decode()
    request = urllib.request.Request("http://169.254.169.254/latest/" + path, headers={"X-aws-ec2-metadata-token": token})
    return urllib.request.urlopen(request, timeout=10).read().decode()


def main(words):
    given, names, rest = {}, [], iter(words)
    for word in rest:
        if word in OPTIONS:
            given[word] = next(rest)
        elif word.startswith("-"):
            sys.exit(f"bootstrap.sh (a fake of the test bed): unknown option {word}")
        else:
            names.append(word)
    if len(names) != 1 or not names[0]:
        sys.exit("CLUSTER_NAME is not defined")
    if given.get("--container-runtime", "containerd") != "containerd":
        sys.exit("bootstrap.sh (a fake of the test bed): only containerd is supported")
    server, authority = given["--apiserver-endpoint"], base64.b64decode(given["--b64-cluster-ca"], validate=True)
    run("snap", "stop", "kubelet-eks")
    document = json.loads(metadata("dynamic/instance-identity/document"))
    run("mkdir", "-p", "/etc/kubernetes/pki")
    with open(AUTHORITY, "wb") as file:
        file.write(authority)
    with open(KUBECONFIG, encoding="utf-8") as file:
        text = file.read()
    for word, value in [("CLUSTER_NAME", names[0]), ("MASTER_ENDPOINT", server), ("AWS_REGION", document["region"])]:
        text = text.replace(word, value)
    with open(KUBECONFIG, "w", encoding="utf-8") as file:
        file.write(text)
    with open("/usr/local/share/eks/containerd-config.toml", encoding="utf-8") as file:
        text = file.read().replace("SANDBOX_IMAGE", "602401143452.dkr.ecr.eu-central-1.amazonaws.com/eks/pause:3.5")
    with open("/etc/containerd/config.toml", "w", encoding="utf-8") as file:
        file.write(text)
    run("systemctl", "restart", "containerd")
    run("snap", "set", "kubelet-eks", "cloud-provider=external", "config=/etc/kubernetes/kubelet/kubelet-config.json",
        f"kubeconfig={KUBECONFIG}", "node-ip=" + metadata("meta-data/local-ipv4"),
        "hostname-override=" + metadata("meta-data/local-hostname"), "args=" + given.get("--kubelet-extra-args", ""))
    run("snap", "start", "--enable", "kubelet-eks")


main(sys.argv[1:])
