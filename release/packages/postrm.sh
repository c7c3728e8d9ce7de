#!/bin/sh
# Runs after the removal. If the package is removed (dpkg passes `remove` or `purge`, rpm 0), lists the changes that stay on the
# machine. `purge` removes the state, but only if no change is applied, because `uninstall` needs the journal. The program no longer
# exists here, so this script reads the journal (docs/journal.md).
case ${1:-} in
remove | purge | 0) ;;
*) exit 0 ;;
esac
state=${DPKG_ROOT:-}/var/lib/gpu-bootstrap
settings=${DPKG_ROOT:-}/etc/gpu-bootstrap
resume=${DPKG_ROOT:-}/etc/systemd/system/gpu-bootstrap-resume.service

# Prints the steps and the kind of each applied change, oldest first. Fails if a line is not a complete record.
applied() {
    LC_ALL=C awk '
        !/^\{"schema":[0-9]+,"seq":[0-9]+,"at":"[^"]*","run":"[^"]*","record":\{"kind":"[a-z-]+"/ || !/\}\}$/ { exit broken = 1 }
        {
            match($0, /"seq":[0-9]+/)
            seq = substr($0, RSTART + 6, RLENGTH - 6)
            sub(/^.*"run":"[^"]*","record":\{"kind":"/, "\t")
            kind = substr($0, 2, index($0, "\"") - 2)
            if (match($0, /^\t[a-z-]+","intent":[0-9]+/)) intent = substr($0, length(kind) + 13, RLENGTH - length(kind) - 12)
        }
        (kind == "intent" || kind == "reduced") && match($0, /"steps":\[[^]]*\]/) {
            list = substr($0, RSTART + 9, RLENGTH - 10)
            gsub(/"/, "", list)
            gsub(/,/, ", ", list)
            steps[kind == "intent" ? seq : intent] = list
        }
        kind == "intent" {
            match($0, /"change":\{"kind":"[a-z-]+"/)
            change[seq] = substr($0, RSTART + 18, RLENGTH - 19)
            order[++count] = seq
        }
        kind == "reverted" { delete change[intent] }
        # The change had no lasting effect. In a string, a quotation mark follows a backslash. A package transaction without effect
        # is not recognized, so the state stays.
        (kind == "applied" || kind == "interrupted" || kind == "failed") &&
            /,"undo":\{"undo":("nothing"|"unhold","held":\[\])/ { delete change[intent] }
        END {
            if (broken) exit 1
            for (i = 1; i <= count; i++) if (order[i] in change) print steps[order[i]] ": " change[order[i]]
        }
    ' "$1"
}

unknown=
changes=
if [ -e "$state" ]; then
    if [ -s "$state/journal.jsonl" ]; then
        changes=$(applied "$state/journal.jsonl") || unknown="$state/journal.jsonl is damaged"
    elif [ -e "$state/receipt.json" ] || [ -n "$(ls -A "$state/backups" 2>/dev/null)" ]; then
        unknown="$state contains no journal"
    fi
    for damaged in "$state"/journal.jsonl.*; do
        [ ! -e "$damaged" ] || unknown="$damaged was set aside"
    done
fi

if [ -n "$unknown" ]; then
    echo "gpu-bootstrap: the changes to this machine are unknown, because $unknown. $state stays."
elif [ -n "$changes" ]; then
    if [ "$1" != purge ]; then
        echo 'gpu-bootstrap: the package was removed, but these changes to this machine stay (steps: change):'
        printf '%s\n' "$changes" | sort | uniq | sed 's/^/  /'
    fi
    echo "gpu-bootstrap: $state stays, because \`gpu-bootstrap uninstall\` needs it. To revert the changes, install the package"
    echo 'again and run this command.'
elif [ -e "$state" ]; then
    if [ "$1" = purge ]; then
        rm -rf "$state"
    else
        echo "gpu-bootstrap: no change to this machine is applied. $state stays."
    fi
fi
if [ "$1" != purge ] && grep -q '^ExecStart=/usr/bin/gpu-bootstrap ' "$resume" 2>/dev/null; then
    echo 'gpu-bootstrap: a run waits for a reboot, and continues only if the package is installed by then.'
fi
if [ -n "$(ls -A "$settings" 2>/dev/null)" ]; then
    echo "gpu-bootstrap: the settings in $settings stay."
fi
exit 0
