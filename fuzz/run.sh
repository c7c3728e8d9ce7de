#!/bin/sh
# Runs the given fuzz targets, or all, for SECONDS each, in parallel on all CPUs: fuzz/run.sh SECONDS [TARGET…]
#
# Inputs that reach new code are saved in target/fuzz/corpus, and the next run continues with them. A target stops at its first
# finding: a panic, a timeout (TIMEOUT seconds for one input), or more than 2 GiB of memory. The input is saved in
# target/fuzz/findings. Fix the bug and add the input to fuzz/corpus/TARGET, which `cargo test --test fuzz` reads.
set -eu
seconds=$1
shift
cd "$(dirname "$0")"
[ $# -gt 0 ] || set -- $(basename -s .rs fuzz_targets/*.rs)

if ! "${CXX:-c++}" --version >/dev/null 2>&1; then
    echo "fuzz: no C++ compiler, which libFuzzer requires: \`apt-get install g++\`, \`dnf install gcc-c++\`, or set CXX" >&2
    exit 1
fi

out=${CARGO_TARGET_DIR:-$(cd .. && pwd)/target}/fuzz
mkdir -p "$out/findings" "$out/log"
# Use the same library versions as the main workspace.
if ! { [ -f Cargo.lock ] && cmp -s ../Cargo.lock "$out/program.lock"; }; then
    cp ../Cargo.lock Cargo.lock
    cp ../Cargo.lock "$out/program.lock"
fi

# The coverage flags of `cargo fuzz`, which stable compilers also support. With `--target`, cargo does not pass them to build
# scripts and procedural macros.
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares"
host=$(rustc -vV | sed -n 's/^host: //p')
bins=
for target in "$@"; do bins="$bins --bin $target"; done
env -u RUSTC_WORKSPACE_WRAPPER CARGO_TARGET_DIR="$out" cargo build --release --quiet --target "$host" $bins

# The fuzzers create machine trees in TMPDIR and do not remove them when they exit.
TMPDIR=$(mktemp -d "$(test -w /dev/shm && echo /dev/shm || echo "$out")/fuzz.XXXXXX")
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
trap 'exit 130' INT TERM

one='
target=$1
# Inputs of the same type from other tests.
case $target in
    journal) more=../tests/journals ;;
    lspci | settings) more=../tests/cli/files ;;
    texts) more=../tests/labels ;;
    *) more= ;;
esac
mkdir -p "$out/corpus/$target"
"$bin/$target" -max_total_time="$seconds" -timeout="${TIMEOUT:-20}" -print_final_stats=1 \
    -artifact_prefix="$out/findings/$target-" "$out/corpus/$target" "corpus/$target" $more >"$out/log/$target" 2>&1 && exit
echo "fuzz: finding in $target, last lines of $out/log/$target:" >&2
grep -v "^#" "$out/log/$target" | tail -40 >&2
exit 1
'
export out seconds bin="$out/$host/release"
printf '%s\0' "$@" | xargs -0 -n 1 -P "$(nproc)" sh -c "$one" sh

for target in "$@"; do
    sed -n "s/^stat::number_of_executed_units: */$target: inputs executed: /p" "$out/log/$target"
done
