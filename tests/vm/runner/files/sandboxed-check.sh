#!/bin/sh
# Part of the test harness: succeeds if `check` reports the same findings in the sandbox of gpu-bootstrap-check.service as by hand,
# and if systemd knows each option of the sandbox.
set -eu
unit=gpu-bootstrap-check.service
test "$(journalctl --unit "$unit" --output cat | grep -ciE 'unknown (lvalue|key|system call)|failed to parse')" = 0
cat >/run/systemd/system/sandboxed.service <<END
[Service]
Type=oneshot
$(grep -vE '^(\[|Exec|Description|PartOf|Standard|SuccessExit|Type)' "/etc/systemd/system/$unit")
ExecStart=/usr/local/bin/gpu-bootstrap check --as-installed --format prometheus
SuccessExitStatus=4 6
StandardOutput=file:/root/sandboxed.all
END
systemctl daemon-reload
systemctl start sandboxed.service
rm /run/systemd/system/sandboxed.service
systemctl daemon-reload
gpu-bootstrap check --as-installed --format prometheus >/root/by-hand.all || test $? = 4
for one in by-hand sandboxed; do
    grep ^gpu_bootstrap_finding /root/$one.all >/root/$one
done
diff /root/by-hand /root/sandboxed
rm /root/by-hand* /root/sandboxed*
