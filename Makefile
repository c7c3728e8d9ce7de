# What a person types. Each target installs or builds what it needs.

include tests/vm/vm.mk

.PHONY: test lint unit

# Everything that continuous integration runs.
test: lint unit test-machines

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings

unit:
	cargo test --workspace --locked --quiet
