# Test machines; see tests/vm/README.md. They are booted with namespaces and mounts: run as root.

VM = $(or $(CARGO_TARGET_DIR),target)/debug/vm

.PHONY: demo test-machines test-vm vm

# The product's main job on a disposable machine, in two boots.
demo: vm
	$(VM) demo

# The quick cases of the table.
test-machines: vm
	$(VM) test

# All of them, and that a run which is interrupted leaves nothing.
test-vm: vm
	$(VM) test --all
	cargo test --quiet --locked --workspace --test leaves_nothing -- --ignored --test-threads 1

# The whole workspace at once: of single packages, cargo compiles what they share once more.
vm:
	cargo build --quiet --locked --workspace
