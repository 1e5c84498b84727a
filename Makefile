# The verbs of this house. `make` alone lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

TOOLS := target/tools
DENY := $(TOOLS)/bin/cargo-deny
DENY_VERSION := 0.20.2

# Tests may unwrap, and those of pure crates may read a clock or a file.
IN_TESTS := -A clippy::unwrap_used -A clippy::disallowed_methods -A clippy::disallowed_types

# The simulator, always with the bugs that can be planted: a second build without them would show no more.
SIM := cargo run --locked --profile sim --package sim --features mutants --

# Seeds that once broke a promise.
FOUND := 1162 1201 1283 2039 2270

.PHONY: help
help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: packages ## build and start `windlass dev`; more flags in ARGS="…"
	cargo run --release --locked --package cli --bin windlass -- dev $(ARGS)

.PHONY: release
release: packages ## the binary as it is shipped, built for what it does under load: target/shipped/windlass
	scripts/release

.PHONY: check
check: packages fmt clippy doc ## the quick one: format, lints, docs, unit tests
	cargo test --locked --workspace --lib --bins

.PHONY: fix
fix: packages ## the one that edits: format, and what clippy can mend
	cargo fmt --all
	cargo clippy --locked --workspace --all-targets --fix --allow-dirty --allow-staged

.PHONY: test
test: packages fault-tools guide-tools fmt clippy doc deny ## all of it, and what CI runs
	cargo test --locked --workspace
	$(SIM) --seeds 1..101 --minutes 0.5 --jobs 2
	for seed in $(FOUND); do $(SIM) --seed $$seed; done
	$(SIM) mutants replay

.PHONY: sim
sim: packages ## clusters in simulated time; ARGS="--seed 7 --trace", "--seeds 1..200", "--help"
	$(SIM) $(or $(ARGS),--seeds 1..101)

.PHONY: test-long
test-long: packages ## thousands of simulated clusters, and a hunt for every planted bug: hours
	$(SIM) --seeds 1001..4001 --jobs 2
	$(SIM) mutants hunt 100000..100100

.PHONY: test-faults
test-faults: packages fault-tools ## the long form of what breaks clusters: hours
	WINDLASS_FAULTS=long cargo test --locked --package cli --test cluster -- --nocapture --test-threads 1
	WINDLASS_FAULTS=long cargo test --locked --package cli --test hostile --test proof -- --nocapture
	$(MAKE) rig ARGS="--all"

# One target, or each in turn; `SECONDS` is bash's own, so it is read here.
TARGET ?= http_bodies tokens log checkpoint peer_frames snapshot config durations grpc
FUZZ_SECONDS := $(or $(SECONDS),60)
FUZZ := target/fuzz
# What libFuzzer needs to see which paths an input took; all of it is in the stable compiler.
FUZZ_FLAGS := --cfg tokio_unstable --cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
	-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
	-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1
HOST = $(shell rustc -vV | sed -n 's/^host: //p')

.PHONY: fuzz
fuzz: packages ## bytes from outside against libFuzzer: [TARGET=log] [SECONDS=60] a target
	@scripts/need c++ build-essential
	cargo run --quiet --locked --package fuzz --bin fuzz-seeds -- $(FUZZ)/seeds
	RUSTFLAGS="$(FUZZ_FLAGS)" cargo build --locked --profile fuzz --target $(HOST) --target-dir $(FUZZ)/build \
		--package fuzz --features libfuzzer --bin fuzz-run
	for target in $(TARGET); do \
		mkdir -p "$(FUZZ)/corpus/$$target" "$(FUZZ)/found/$$target"; \
		WINDLASS_FUZZ_TARGET="$$target" $(FUZZ)/build/$(HOST)/fuzz/fuzz-run -max_total_time=$(FUZZ_SECONDS) \
			-max_len=65536 -rss_limit_mb=1024 -timeout=10 -print_final_stats=1 \
			-artifact_prefix="$(FUZZ)/found/$$target/" "$(FUZZ)/corpus/$$target" "$(FUZZ)/seeds/$$target"; \
	done

.PHONY: rig
rig: packages fault-tools ## real servers, real faults, every call judged; ARGS="--fault kill --seconds 120", "--mix", "--help"
	cargo build --locked --release --package cli --package sim --package rig
	target/release/rig $(or $(ARGS),--all)

.PHONY: demo-faults
demo-faults: packages ## three nodes and four workers here, killed in turn; counts at the end
	cargo run --release --locked --package cli --bin windlass -- demo-faults $(ARGS)

.PHONY: bench
bench: packages ## the state machine alone, then Windlass beside Redis; all peers: bench/compare
	@scripts/need redis-server redis-server
	cargo bench --locked --package bench --bench state_machine
	cargo build --locked --release --package cli --package bench
	target/release/bench compare --systems windlass1,windlass3,redis --out target/bench-data/redis.json
	target/release/bench depth

# What the verbs above are made of.

.PHONY: packages
packages:
	@scripts/need cargo
	@scripts/need cc build-essential

# What the pages of the guide use.
.PHONY: guide-tools
guide-tools:
	@scripts/need curl curl
	@scripts/need jq jq

# Networks that can be cut and clocks that can be wrong. Without root the tests say what they skip.
.PHONY: fault-tools
fault-tools:
	@if [[ $$EUID -eq 0 ]]; then scripts/need ip iproute2; scripts/need nft nftables; scripts/need faketime faketime; \
	scripts/need strace strace; scripts/need mkfs.ext4 e2fsprogs; scripts/need nsenter util-linux; \
	else echo "not root: tests that cut networks are skipped" >&2; fi

.PHONY: fmt
fmt:
	cargo fmt --all --check

.PHONY: clippy
clippy:
	cargo clippy --locked --workspace --lib --bins -- -D warnings
	cargo clippy --locked --workspace --all-targets -- -D warnings $(IN_TESTS)

.PHONY: doc
doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items --quiet

.PHONY: deny
deny: $(DENY)
	$(DENY) --log-level error check licenses bans sources

# Without optimisation it builds in a minute and still checks in a second.
$(DENY):
	CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --locked --debug --root $(TOOLS) \
		--target-dir $(TOOLS)/build cargo-deny@$(DENY_VERSION)
	rm -rf $(TOOLS)/build
