#!/bin/sh
# Part of the test harness, for the token in a file: `secret watch FILE [cmdline]` searches command lines and, without
# the second word, environments of processes until it is killed, and records each match; `secret search FILE
# [DIRECTORY...]` fails if there was a match, or if the token is now in another file outside of these directories, or in
# the journal. Only the secret part of the token counts; the rest is its ID.
set -u
found=/run/testbed-secret
case $1 in
watch)
    touch "$found"
    while sleep 0.02; do
        for name in ${3:-cmdline environ}; do
            # shellcheck disable=SC2062
            sed 's/.*[.]//' "$2" | grep -laFs -f - /proc/[0-9]*/"$name" >>"$found"
        done
    done
    ;;
search)
    file=$2
    shift 2
    kept=$(mktemp)
    printf '^%s/\n' "$@" >"$kept"
    test $# -gt 0 || : >"$kept"
    if [ -s "$found" ]; then
        echo "the token was in $(sort -u "$found" | tr '\n' ' ')"
        exit 1
    fi
    files=$(sed 's/.*[.]//' "$file" | grep -rlaFs -D skip -f - /boot /etc /home /opt /root /run /srv /tmp /usr /var |
        grep -vxF "$file" | grep -v -f "$kept")
    rm "$kept"
    if [ -n "$files" ]; then
        echo "the token is in $files"
        exit 1
    fi
    pattern=$(mktemp)
    sed 's/.*[.]//' "$file" >"$pattern"
    journalctl -q -o export | grep -aF -f "$pattern"
    code=$?
    rm "$pattern"
    [ "$code" = 1 ]
    ;;
esac
