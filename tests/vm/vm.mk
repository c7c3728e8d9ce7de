# Test machines, see tests/vm/README.md. Booting them needs namespaces and mounts: run as root.

VM = $(or $(CARGO_TARGET_DIR),target)/debug/vm

.PHONY: demo test-machines test-vm vm

# The product's main job on a disposable machine, in two boots.
demo: vm
	$(VM) demo

# The quick cases of the table.
test-machines: vm
	$(VM) test

# All cases, the test that an interrupted run leaves nothing behind, and the program for aarch64.
test-vm: vm aarch64
	$(VM) test --all
	cargo test --quiet --locked --workspace --test leaves_nothing -- --ignored --test-threads 1

# Builds the whole workspace: for a single package cargo would compile shared dependencies again.
vm:
	cargo build --quiet --locked --workspace
