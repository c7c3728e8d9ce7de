#!/bin/sh
# Runs a random sample of mutants: tests/mutants.sh SEED COUNT OUTPUT-FOLDER. The same seed takes the same mutants
# of the same code. Ends with 0 if every one of them is caught; the list of the others is in OUTPUT-FOLDER.
# Mutants that delete a field of a struct are all tested, too: cargo-mutants 27.1 selects them by no name.
set -eu

seed=$1 count=$2 output=$3
mkdir -p "$output"
cargo mutants --workspace --list >"$output/all.txt"
awk -v seed="$seed" 'BEGIN { srand(seed) } { printf "%.9f\t%s\n", rand(), $0 }' "$output/all.txt" |
    sort -n | head -n "$count" | cut -f 2- | sort >"$output/sample.txt"
echo "seed $seed: $(wc -l <"$output/sample.txt") of $(wc -l <"$output/all.txt") mutants, listed in $output/sample.txt"

# Each mutant by its whole name, as a regular expression.
set --
while IFS= read -r name; do
    set -- "$@" --re "^$(printf '%s' "$name" | sed 's/[][\\.*^$(){}?+|]/\\&/g')\$"
done <"$output/sample.txt"
exec cargo mutants --workspace --no-shuffle --output "$output" "$@"
