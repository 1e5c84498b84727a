# The verbs of this house. `make` alone lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

TOOLS := target/tools
DENY := $(TOOLS)/bin/cargo-deny
DENY_VERSION := 0.20.2

# Tests may unwrap, and those of pure crates may read a clock or a file.
IN_TESTS := -A clippy::unwrap_used -A clippy::disallowed_methods -A clippy::disallowed_types

.PHONY: help
help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: packages ## build and start `windlass dev`; more flags in ARGS="…"
	cargo run --release --locked --package cli --bin windlass -- dev $(ARGS)

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

.PHONY: test-faults
test-faults: packages fault-tools ## the long form of what breaks clusters: hours
	WINDLASS_FAULTS=long cargo test --locked --package cli --test cluster -- --nocapture --test-threads 1

.PHONY: demo-faults
demo-faults: packages ## three nodes and four workers here, killed in turn; counts at the end
	cargo run --release --locked --package cli --bin windlass -- demo-faults $(ARGS)

.PHONY: bench
bench: packages ## the benchmarks, beside Redis in the same run
	@scripts/need redis-server redis-server
	cargo bench --locked --package bench --bench state_machine
	cargo build --locked --release --package cli --package bench
	target/release/bench lifecycle
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
