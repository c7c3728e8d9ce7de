# Test machines, see tests/vm/README.md. Booting them needs namespaces and mounts: run as root.

VM = $(or $(CARGO_TARGET_DIR),target)/debug/vm

# The program of `make release`, which users run.
RELEASED = $(or $(CARGO_TARGET_DIR),target)/x86_64-unknown-linux-gnu/release/gpu-bootstrap

# The test machines have this architecture.
machines-released bench: ARCHITECTURES = x86_64

# Tiers of cases, see tests/vm/README.md.
TIERS ?= core

.PHONY: bench demo recording machines machines-released machines-long vm

# The product's main job on a disposable machine, in two boots.
demo: vm
	$(VM) demo

# `plan`, `install` with its progress, and the result of the demo, as an animation that plays once.
recording: vm
	mkdir -p target
	tests/vm/recording.py 'gpu-bootstrap: plan, install, and the finished node' $(VM) demo >target/install.svg
	mv target/install.svg docs/install.svg

# The cases of the tiers, with an unoptimized program.
machines: vm
	$(VM) test $(addprefix --tier ,$(TIERS))

# All cases except the long ones, with the program of `make release`.
machines-released: vm release
	$(VM) test --tier core --tier full --tier cluster --program $(RELEASED)

# The long cases, and the test that an interrupted run leaves nothing behind.
machines-long: vm
	$(VM) test --tier long
	cargo test --quiet --locked --workspace --test leaves_nothing -- --ignored --test-threads 1

# Compares methods to prepare the same node, in one run: medians of RUNS runs with each link and disk, with the program of
# `make release`, as Markdown and as charts in target/bench. docs/tested.md explains the options.
RUNS ?= 3
LINK ?= 200mbit 2gbit
DISK ?= memory disk
bench: vm release
	rm -rf target/bench
	$(VM) bench $(CASES) --runs $(RUNS) $(addprefix --link ,$(LINK)) $(addprefix --disk ,$(DISK)) \
	    $(if $(BEFORE),--before $(BEFORE)) --output target/bench --program $(RELEASED)

# Builds the whole workspace, because for a single package cargo would compile shared dependencies again.
vm:
	cargo build --quiet --locked --workspace
