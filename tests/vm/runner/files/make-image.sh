#!/bin/sh
# Part of the test harness: imports a directory as an image into the kubelet's containerd: NAME DIRECTORY [PROGRAM]
set -eu
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
tar -C "$2" --owner=0 --group=0 --numeric-owner -cf "$work/layer.tar" .
digest=$(sha256sum "$work/layer.tar" | cut -d ' ' -f 1)
cat >"$work/config.json" <<END
{"architecture": "amd64", "os": "linux", "config": {"Entrypoint": ["${3:-/bin/sh}"], "Env": ["PATH=/bin"]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$digest"]}}
END
echo "[{\"Config\": \"config.json\", \"RepoTags\": [\"$1\"], \"Layers\": [\"layer.tar\"]}]" >"$work/manifest.json"
tar -C "$work" -cf "$work/image.tar" manifest.json config.json layer.tar
ctr --namespace k8s.io images import "$work/image.tar"
