# The commands for people. Each target installs or builds what it needs.

include tests/vm/vm.mk

.PHONY: test test-all test-long lint format unit ptx readers release aarch64 deny fuzz update mutants size

# What everybody runs before a commit: format, lint, unit tests, scenarios, and the core of the machine cases. It has a
# budget of 20 minutes on two slow processors from a clean clone; `make test TIERS="core cluster"` adds a tier.
test: format unit machines

# All but what takes hours, before a release: the core, full and cluster tiers with the released program, a short run of each
# fuzzer, and simulated runs that are killed at every write of the first machine, where `make test` takes every fifth. The
# released program is built beside the unit tests, because the last minutes of its build use one processor.
test-all: export EVERY_MUTATION = 1
test-all: format
	$(MAKE) --jobs 2 unit release
	$(MAKE) deny ptx readers
	$(MAKE) fuzz SECONDS=30
	$(MAKE) machines-released

# The rest.
test-long: machines-long aarch64

# Here clippy's driver compiles the workspace's own packages in place of rustc, so each is compiled once: it looks for lints,
# and a warning is an error. `make lint` alone is cargo's own command; its results cannot be used for tests.
test test-all: export RUSTC_WORKSPACE_WRAPPER = clippy-driver
test test-all: export CLIPPY_ARGS = -Dwarnings

lint: format
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings

format:
	cargo fmt --all --check

unit:
	cargo test --workspace --locked --quiet

# Assembles the probe's kernel for every architecture of the matrix with NVIDIA's ptxas, which comes from PyPI (90 MB, kept
# in .cache) with fixed hashes. It needs Python 3 with venv.
ptx:
	tests/ptx/assemble.sh

# Gives what `check` writes for other programs to these programs: `prove`'s parser, junitparser, Prometheus, cmark-gfm, Chromium and Nagios. It
# runs as root on Debian, from whose archive they come (tests/readers/run.sh). With NODE_PROBLEM_DETECTOR=PROGRAM that reads its plugin, too.
readers: vm
	tests/readers/run.sh

# The program for x86_64 machines with glibc 2.28 or newer, as an archive with its SHA-256 in target/release-files. It
# needs Python 3 with venv; cargo-zigbuild and zig come from PyPI with fixed hashes.
release:
	env -u RUSTC_WORKSPACE_WRAPPER release/build.sh x86_64

# The program for aarch64, by the same recipe, started under qemu's user-mode emulation. It needs rustup, which downloads
# Rust's standard library for aarch64, and takes some 6 minutes on two cores. A part of `make test-long`.
aarch64:
	tests/aarch64/run.sh

# Compares the dependencies with deny.toml: licenses, bans, sources and RustSec's advisories. It needs `cargo install --locked
# cargo-deny@0.20.2`. It fails if the advisory database is not available, unless ADVISORIES=optional.
deny:
	cargo deny --locked check --hide-inclusion-graph licenses bans sources
	if cargo deny --locked fetch db; then \
	    cargo deny --locked --offline check --hide-inclusion-graph advisories; \
	else \
	    echo "the advisory database is not available: advisories were NOT checked" >&2; \
	    [ "$(ADVISORIES)" = optional ]; \
	fi

# Fuzzes what others write and this program reads, for SECONDS each: host trees, settings, journals, the output of lspci and of
# other tools (fuzz/src/lib.rs, fuzz/run.sh). It needs a C++ compiler.
SECONDS ?= 3600
fuzz:
	fuzz/run.sh $(SECONDS)

# Renews snapshots, schemas and generated docs, and lists what is different in the working tree.
# Tests that fail for other reasons are reported, and the rest is renewed all the same.
update:
	status=0; INSTA_UPDATE=always UPDATE_DOCS=1 cargo test --locked --quiet --no-fail-fast || status=$$?; \
	git status --short; exit $$status

# Changes operators and results in a random sample of functions, and shows which changes no test notices. Each mutant
# is compiled and tested, so this takes minutes per mutant. It needs `cargo install --locked cargo-mutants@27.1.0`.
SEED ?= 1
SAMPLE ?= 150
mutants:
	tests/mutants.sh $(SEED) $(SAMPLE) target/mutants

# Prints how large the project is; `tests/size.sh COMMIT` prints it for a commit.
size:
	tests/size.sh
