#!/bin/sh
# Fuzzes the named targets, or all, for SECONDS each, as many at a time as there are processors: fuzz/run.sh SECONDS [TARGET…]
#
# What leads to new code is kept in the folder corpus of target/fuzz, and the next run goes on from there. A finding (a panic,
# more than TIMEOUT seconds for one text, or more than 2 GiB) ends its target: its text is in findings there. Mend it, and put the text
# into fuzz/corpus/TARGET, so that `cargo test --test fuzz` reads it from then on.
set -eu
seconds=$1
shift
cd "$(dirname "$0")"
[ $# -gt 0 ] || set -- $(basename -s .rs fuzz_targets/*.rs)

if ! "${CXX:-c++}" --version >/dev/null 2>&1; then
    echo "fuzz: libFuzzer needs a C++ compiler: install g++ (\`apt-get install g++\`, \`dnf install gcc-c++\`), or name one in CXX" >&2
    exit 1
fi

out=${CARGO_TARGET_DIR:-$(cd .. && pwd)/target}/fuzz
mkdir -p "$out/findings" "$out/log"
# The libraries of the program, in its versions.
if ! { [ -f Cargo.lock ] && cmp -s ../Cargo.lock "$out/program.lock"; }; then
    cp ../Cargo.lock Cargo.lock
    cp ../Cargo.lock "$out/program.lock"
fi

# rustc's own coverage for libFuzzer, as `cargo fuzz` asks for it; stable compilers have it, too. Build scripts and macros get
# none, because a target is named.
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares"
host=$(rustc -vV | sed -n 's/^host: //p')
bins=
for target in "$@"; do bins="$bins --bin $target"; done
env -u RUSTC_WORKSPACE_WRAPPER CARGO_TARGET_DIR="$out" cargo build --release --quiet --target "$host" $bins

# Trees of machines are built there, and a fuzzer ends without clearing away.
TMPDIR=$(mktemp -d "$(test -w /dev/shm && echo /dev/shm || echo "$out")/fuzz.XXXXXX")
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
trap 'exit 130' INT TERM

one='
target=$1
# Texts of other tests that are of the kind.
case $target in
    journal) more=../tests/journals ;;
    lspci | settings) more=../tests/cli/files ;;
    texts) more=../tests/labels ;;
    *) more= ;;
esac
mkdir -p "$out/corpus/$target"
"$bin/$target" -max_total_time="$seconds" -timeout="${TIMEOUT:-20}" -print_final_stats=1 \
    -artifact_prefix="$out/findings/$target-" "$out/corpus/$target" "corpus/$target" $more >"$out/log/$target" 2>&1 && exit
echo "fuzz: $target has a finding; the end of $out/log/$target:" >&2
grep -v "^#" "$out/log/$target" | tail -40 >&2
exit 1
'
export out seconds bin="$out/$host/release"
printf '%s\0' "$@" | xargs -0 -n 1 -P "$(nproc)" sh -c "$one" sh

for target in "$@"; do
    sed -n "s/^stat::number_of_executed_units: */$target: texts read: /p" "$out/log/$target"
done
