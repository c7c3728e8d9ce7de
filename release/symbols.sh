#!/bin/sh
# Rejects a binary that requires a newer glibc: release/symbols.sh PROGRAM VERSION, for example 2.28. Lists each symbol that is
# too new. Versions are compared as numbers, so 2.3 is older than 2.28.
set -eu

program=$1 newest=$2
symbols=$(LC_ALL=C objdump -T "$program")
needed=$(printf '%s\n' "$symbols" | sed -n 's/.*\*UND\*.*(\{0,1\}GLIBC_\([0-9.]*\))\{0,1\} *\(.*\)/\1 \2/p' | sort -u -V)
if [ -z "$needed" ]; then
    echo "$program contains no glibc version: it may not be dynamically linked" >&2
    exit 1
fi
last=$(printf '%s\n' "$needed" | tail -n 1 | cut -d ' ' -f 1)
if [ "$(printf '%s\n%s\n' "$newest" "$last" | sort -V | tail -n 1)" != "$newest" ]; then
    echo "$program needs glibc $last, newer than $newest:" >&2
    printf '%s\n' "$needed" | while read -r version symbol; do
        if [ "$(printf '%s\n%s\n' "$newest" "$version" | sort -V | tail -n 1)" != "$newest" ]; then
            echo "  $symbol (GLIBC_$version)" >&2
        fi
    done
    exit 1
fi
echo "$program needs glibc $last or newer"
