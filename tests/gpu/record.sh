#!/bin/sh
# Runs the released program on a machine with real NVIDIA GPUs and a loaded driver, and packs what it says with a
# recording of what it read: tests/gpu/record.sh [PROGRAM]. It changes nothing on the machine but its own folder, takes
# some ten minutes at most, and works without root, which then misses what only root may read.
#
#     make release                        # here, or take the program from an archive of a release
#     scp target/x86_64-unknown-linux-gnu/release/gpu-bootstrap tests/gpu/record.sh MACHINE:
#     ssh MACHINE 'sudo sh record.sh ./gpu-bootstrap'
#     scp MACHINE:gpu-recording-*.tar.gz .
#
# The folder `recording/files` of the archive becomes `tests/hosts/NAME/root` (tests/hosts/README.md). Read it before
# you publish it: it has the serial numbers and addresses that the machine's files have.
set -eu

# The place of a released program beside this file's repository, and beside this file on a machine.
program=${1:-$(dirname "$0")/../../target/x86_64-unknown-linux-gnu/release/gpu-bootstrap}
if [ ! -x "$program" ]; then
    echo "record.sh: there is no program $program: build it with \`make release\`, or give its path" >&2
    exit 2
fi
if ! ls /sys/module/nvidia/version >/dev/null 2>&1; then
    echo "record.sh: no NVIDIA driver is loaded here: /sys/module/nvidia/version is missing" >&2
    exit 2
fi
for tool in timeout tar sha256sum; do
    command -v "$tool" >/dev/null || { echo "record.sh: the program \`$tool\` is missing" >&2; exit 2; }
done
export LC_ALL=C

name=gpu-recording-$(date -u +%Y%m%dT%H%M%SZ)
# Root records only into a folder on a path that only root may change, which the home of a user is not.
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

# `say NAME ARGUMENT...` runs the program and keeps its output, its exit code and the seconds it took.
say() {
    what=$1
    shift
    begin=$(date +%s)
    code=0
    timeout 240 "$program" "$@" >"$out/$what.out" 2>"$out/$what.err" </dev/null || code=$?
    echo "$what: exit $code after $(($(date +%s) - begin)) s: gpu-bootstrap $*" | tee -a "$out/about.txt"
    # 4 is a finding, which is a result; 124 is the time limit above, and 128 and more a crash.
    if [ "$code" -ge 124 ]; then
        failed="${failed:-} $what"
    fi
}

say facts facts --format json
say check check --format json
say check-for-people check --verbose
say probe probe --format json
say probe-for-people probe
say plan plan --format json
say record check --record "$out/recording"
if command -v nvidia-smi >/dev/null; then
    # What the driver's own program says, to compare with.
    timeout 60 nvidia-smi -q >"$out/nvidia-smi.txt" 2>&1 </dev/null || echo "nvidia-smi failed" | tee -a "$out/about.txt"
fi

# Root creates the archive and follows no link of somebody else.
(set -C && tar -C "$work" -czf - "$name" >"$name.tar.gz")
echo "$name.tar.gz has all of it"
if [ -n "${failed:-}" ]; then
    echo "record.sh: these ended in no result:$failed" >&2
    exit 1
fi
