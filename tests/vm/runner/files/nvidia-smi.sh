#!/bin/sh
# A fake of the test harness, because the real program uses private driver interfaces.
case "${1:-}" in
-L | --list-gpus) cat /usr/lib/testbed/gpus ;;
# Only printed: a case sets the mode in the inventory of the fake NVML library.
--compute-mode=*) echo "compute mode ${1#*=}" ;;
*)
    # As called by the MPS control daemon of the device plugin.
    if [ "${1:-} ${3:-}" = "-i -c" ]; then
        echo "compute mode $4"
        exit
    fi
    echo "nvidia-smi: a fake of the test bed, which supports only -L and --compute-mode" >&2
    exit 1
    ;;
esac
