#!/bin/sh
# Runs the release binary on a machine with real NVIDIA GPUs and a loaded driver, and archives its output together with the
# files that it read: tests/gpu/record.sh [PROGRAM]. It writes only to its own directory and the archive, and takes at most about ten
# minutes. Root is not required, but without root, data that only root can read is missing.
#
#     make release                        # or use the binary from a release archive
#     scp target/x86_64-unknown-linux-gnu/release/gpu-bootstrap tests/gpu/record.sh MACHINE:
#     ssh MACHINE 'sudo sh record.sh ./gpu-bootstrap'
#     scp MACHINE:gpu-recording-*.tar.gz .
#
# To add a test host, copy `recording/files` from the archive to `tests/hosts/NAME/root` (tests/hosts/README.md). Review the
# archive before you publish it: it contains serial numbers and addresses of the machine.
set -eu

# By default, the output of `make release` in the repository of this script.
program=${1:-$(dirname "$0")/../../target/x86_64-unknown-linux-gnu/release/gpu-bootstrap}
if [ ! -x "$program" ]; then
    echo "record.sh: $program is not an executable file: build it with \`make release\`, or specify its path" >&2
    exit 2
fi
if ! ls /sys/module/nvidia/version >/dev/null 2>&1; then
    echo "record.sh: the NVIDIA driver is not loaded: /sys/module/nvidia/version is missing" >&2
    exit 2
fi
for tool in timeout tar sha256sum; do
    command -v "$tool" >/dev/null || { echo "record.sh: \`$tool\` is not installed" >&2; exit 2; }
done
export LC_ALL=C

name=gpu-recording-$(date -u +%Y%m%dT%H%M%SZ)
# As root, record to a directory whose path only root can change, unlike a user's home directory.
work=.
if [ "$(id -u)" -eq 0 ]; then
    work=$(mktemp -d /run/gpu-recording.XXXXXX)
    trap 'rm -rf "$work"' EXIT
fi
out=$work/$name
mkdir "$out"
{
    echo "program: $("$program" --version), sha256 $(sha256sum "$program" | cut -d ' ' -f 1)"
    echo "driver: $(cat /sys/module/nvidia/version)"
    echo "kernel: $(uname -srm)"
    echo "user: $(id -u)"
} | tee "$out/about.txt"

# `record NAME ARGUMENT...` runs the program and saves its output, exit code and duration.
record() {
    label=$1
    shift
    begin=$(date +%s)
    code=0
    timeout 240 "$program" "$@" >"$out/$label.out" 2>"$out/$label.err" </dev/null || code=$?
    echo "$label: exit $code after $(($(date +%s) - begin)) s: gpu-bootstrap $*" | tee -a "$out/about.txt"
    # Exit codes such as 4 (findings) are results. 124 is a timeout, and 128 or more a crash.
    if [ "$code" -ge 124 ]; then
        failed="${failed:-} $label"
    fi
}

record facts facts --format json
record check check --format json
record check-text check --verbose
record probe probe --format json
record probe-text probe
record plan plan --format json
record record check --record "$out/recording"
if command -v nvidia-smi >/dev/null; then
    # The output of NVIDIA's tool, for comparison.
    timeout 60 nvidia-smi -q >"$out/nvidia-smi.txt" 2>&1 </dev/null || echo "nvidia-smi failed" | tee -a "$out/about.txt"
fi

# `set -C` does not follow an existing symlink, which another user may have created.
(set -C && tar -C "$work" -czf - "$name" >"$name.tar.gz")
echo "recording saved: $name.tar.gz"
if [ -n "${failed:-}" ]; then
    echo "record.sh: timed out or crashed:$failed" >&2
    exit 1
fi
