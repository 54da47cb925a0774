# Every target does its own setup; each can be run alone on a fresh Debian machine as root.

PREFIX  ?= /usr/local
CARGO   ?= cargo
TORTIE  := target/release/tortie

# Threads of one test program; scripts/test runs several programs at a time.
export RUST_TEST_THREADS ?= 4

# Directory where rustup puts what `setup` installs.
export PATH := $(HOME)/.cargo/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup kube vm-kernel envoy flows-client openstack build image demo test test-vm conformance lint docs docs-reference docs-settings deploy-crds deny bench fuzz soak install deb clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## Install what building and testing need, Rust included (does nothing if it is installed)
	@scripts/setup test

kube: setup ## Build Kubernetes for the lab and the tests, and print its directory (takes minutes the first time, then cached)
	@scripts/kube/build

vm-kernel: setup ## Fetch the kernel of the guest that tests use (cached)
	@scripts/vm/kernel >/dev/null

envoy: setup ## Fetch Envoy for HTTP policies in the lab and the tests, and print its path (cached)
	@scripts/envoy

flows-client: setup ## Fetch a gRPC client in Python for the tests of the flow collector, and print its path (cached)
	@scripts/flows-client

openstack: setup ## Fetch Neutron and create its tables for the tests, and print the directory (cached)
	@scripts/openstack/build

build: ## Build the release binary
	@scripts/setup demo
	$(CARGO) build --release --locked -p tortie

image: build ## Make an image of the release binary (target/tortie-image.tar), without a container tool; ARCH=arm64 for that architecture
ifeq ($(ARCH),)
	$(TORTIE) lab image --output target/tortie-image.tar
else
	binary=$$(scripts/cross $(ARCH)) && $(TORTIE) lab image --binary $$binary --output target/tortie-image-$(ARCH).tar
endif

demo: build ## Start everything on this machine, demonstrate it, clean up
	scripts/demo $(TORTIE)

test: setup kube vm-kernel envoy flows-client openstack lint deny ## Format, lints, licences and every test
	@scripts/test

test-vm: setup vm-kernel ## Only the tests that run in a guest with another kernel
	$(CARGO) test --locked -p tortie --test vm

conformance: setup build ## Run upstream's conformance suites on a Kubernetes lab (SUITES="npa-v0.2.0 npa-v0.1.7 netpol sig-network")
	scripts/conformance/run $(SUITES)

lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	CUSTOM_LIBFUZZER_PATH=/unused/libfuzzer.a $(CARGO) check --manifest-path fuzz/Cargo.toml --target-dir target --all-targets --locked
	scripts/purity
	scripts/prose

docs: ## Build the documentation as a site in target/book (mdBook)
	@scripts/docs

docs-reference: setup ## Regenerate the pages for settings, variables, commands, resources and metrics, and the systemd units
	TORTIE_REFRESH=1 $(CARGO) test --locked -p tortie --bin tortie -- settings::page reference:: up::systemd
	TORTIE_REFRESH=1 $(CARGO) test --locked -p tortie-node --lib page

docs-settings: docs-reference

deploy-crds: setup ## Regenerate what is derived in deploy/: CRDs and policies from the types, policy-only from 20-node.yaml
	TORTIE_REFRESH=1 $(CARGO) test --locked -p tortie --bin tortie -- crds:: policy_only_manifests

deny: setup ## Check licences, bans and sources of all dependencies
	scripts/deny

bench: setup envoy ## Compare the performance with other implementations
	$(CARGO) build --release --locked -p tortie -p tortie-bench
	target/release/tortie-bench

fuzz: setup ## Run each fuzz target for FUZZ_SECONDS (60) of CPU time; resumes an interrupted run
	fuzz/run

soak: setup ## Run long tests: SOAK_ROUNDS (10) random histories, longer contention and crashes
	for round in $$(seq $${SOAK_ROUNDS:-10}); do \
	  TORTIE_SEED=random $(CARGO) test --locked -p tortie-datastore --test differential -- --nocapture || exit 1; done
	TORTIE_SEED=random TORTIE_FAULT_LIVES=20000 $(CARGO) test --locked -p tortie-datastore --lib disk_fault_tests -- --nocapture
	TORTIE_SEED=random TORTIE_PLANS=2500 $(CARGO) test --locked -p tortie-dataplane --test policy differential -- --nocapture
	TORTIE_RESTARTS=1000 $(CARGO) test --locked -p tortie-dataplane --test policy flips::one_that_stopped
	TORTIE_CRASH_ROUNDS=500 $(CARGO) test --locked -p tortie --test crash
	TORTIE_ATTACK_SECONDS=$${TORTIE_ATTACK_SECONDS:-300} $(CARGO) test --release --locked -p tortie --test attack -- --nocapture
	TORTIE_SEED=random TORTIE_SOAK_SECONDS=$${TORTIE_SOAK_SECONDS:-3600} $(CARGO) test --locked -p tortie --test node soak -- --nocapture
	TORTIE_CONTENTION_SECONDS=60 $(CARGO) test --locked -p tortie-ipam --test store contention
	TORTIE_WORKLOADS=100 TORTIE_CHECKS=1000 $(CARGO) test --locked -p tortie --test cli address_churn
	TORTIE_SEED=random TORTIE_STEPS=5000 $(CARGO) test --locked -p tortie --test kubeapi mirror -- --nocapture
	TORTIE_CHURN_SECONDS=$${TORTIE_CHURN_SECONDS:-1200} $(CARGO) test --locked -p tortie --test kubeapi churn -- --nocapture
	TORTIE_OUTAGE_SECONDS=60 $(CARGO) test --locked -p tortie --test kubeapi outage -- --nocapture
	TORTIE_OUTAGE_SECONDS=60 $(CARGO) test --locked -p tortie --test lab without_any_hub
	TORTIE_NODES=100 $(CARGO) test --locked -p tortie --test lab hubs_die -- --nocapture
	TORTIE_CHECKS=100000 $(CARGO) test --locked -p tortie-l7 --test proxy differential -- --nocapture
	TORTIE_REQUESTS=5000 TORTIE_SEED=$$(shuf -i 1-1000000000 -n 1) $(CARGO) test --locked -p tortie --test lab l7::differential -- --nocapture
	TORTIE_WATCHERS=100 $(CARGO) test --locked -p tortie-apiserver --test server watches -- --nocapture
	TORTIE_HISTORIES=2000 $(CARGO) test --locked -p tortie-apiserver --test server differential -- --nocapture
	TORTIE_SEED=random TORTIE_STEPS=10000 $(CARGO) test --locked -p tortie --test kubeapi leaks_are_released -- --nocapture
	$(MAKE) image ARCH=arm64
	qemu-aarch64-static -L /usr/aarch64-linux-gnu target/aarch64-unknown-linux-gnu/release/tortie --version
	TORTIE_HELM=$$(scripts/helm/build) $(CARGO) test --locked -p tortie --bin tortie the_chart
	for round in $$(seq $${SOAK_ROUNDS:-10}); do scripts/attacks || exit 1; done
	TORTIE_SOAK_REPEERINGS=1000 $(CARGO) test --locked -p tortie-bgp --test interop again -- --nocapture

install: build ## Install tortie and calicoctl under PREFIX (/usr/local), with man pages and completion
	scripts/install $(TORTIE) $(DESTDIR)$(PREFIX)

deb: build ## Build a Debian package in target/
	scripts/deb $(TORTIE) target

clean: ## Remove what was built
	$(CARGO) clean
