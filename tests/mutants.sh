#!/bin/sh
# Tests a random sample of mutants: tests/mutants.sh SEED COUNT OUTPUT-DIRECTORY. For the same code, the same seed selects the same
# mutants. Exits with 0 if all of them are caught. Missed mutants are listed in OUTPUT-DIRECTORY. Mutants that delete a struct
# field are always tested, because cargo-mutants 27.1 cannot select them by name.
set -eu

seed=$1 count=$2 output=$3
mkdir -p "$output"
cargo mutants --workspace --list >"$output/all.txt"
awk -v seed="$seed" 'BEGIN { srand(seed) } { printf "%.9f\t%s\n", rand(), $0 }' "$output/all.txt" |
    sort -n | head -n "$count" | cut -f 2- | sort >"$output/sample.txt"
echo "seed $seed: $(wc -l <"$output/sample.txt") of $(wc -l <"$output/all.txt") mutants, listed in $output/sample.txt"

# Select each mutant by its full name, as a regular expression.
set --
while IFS= read -r name; do
    set -- "$@" --re "^$(printf '%s' "$name" | sed 's/[][\\.*^$(){}?+|]/\\&/g')\$"
done <"$output/sample.txt"
exec cargo mutants --workspace --no-shuffle --output "$output" "$@"
