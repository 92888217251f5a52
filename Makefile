# Everything that is done with this repository, from its top folder. Targets call the
# scripts, which call no targets.

SHELL := /bin/bash
GO ?= go
VM := $(CURDIR)/tests/vm/rdma-vm
VERSIONS := 33.2 44.0 56.1 65.0

.PHONY: help demo test setup unit soft small fuzz mutate hostile device baseline lint build cross check arch kernels interop interop-soft interop-udp applications suites versions gpu scale scale-rsocket loss soak soak-soft soak-rsocket
.PHONY: generate headers upgrade coverage bench measure cmtime clean

help: ## print this
	@awk '/^##@ / { print "\n" substr($$0, 5) } match($$0, /^[a-z0-9-]+:.* ## /) { name = $$0; sub(/:.*/, "", name); \
		printf "  %-12s %s\n", name, substr($$0, RLENGTH + 1) }' $(MAKEFILE_LIST)

##@ First

demo: ## show Go and C programs exchange RDMA reads and writes; installs what is missing
	scripts/demo

test: ## prove everything, here and in the VM; installs what is missing
	scripts/test

##@ Every day

setup: ## install and download everything that the tests need
	scripts/test setup

build: ## build everything, for some other systems too
	scripts/test build

lint: ## vet, staticcheck and gofumpt
	scripts/test lint

unit: ## the tests that need no device
	scripts/test unit

soft: ## the tests that need a device, with the one in user space
	scripts/test soft

# SETS="smallest irdma": with these sets of limits. TESTFLAGS=-test.short, RACE=-race.
small: ## the tests that need a device, with devices in user space that have less; prints what ran and what was skipped
	scripts/small $(SETS)

# MESSAGES=10000000 PAIRS=100 SEED=1 SEEDS=1.
soak-soft: ## messages through the device in user space over a network that loses, repeats, reorders and corrupts
	$(GO) test -count 1 -v -timeout 0 -run 'TestSoak$$' ./softroce/internal/engine -args \
		-soak.messages=$(or $(MESSAGES),1000000) -soak.pairs=$(or $(PAIRS),100) -soak.seed=$(or $(SEED),1) -soak.seeds=$(or $(SEEDS),1)

# FUZZTIME=1m, and PKG="./softroce/internal/cm ./rsocket/...": the targets of those packages.
fuzz: ## each fuzz target for FUZZTIME, a minute without it; PKG=./softroce/internal/wire: those of that package
	scripts/fuzz $(or $(FUZZTIME),1m) $(PKG)

# FILES='^(room|operation)\.go$$' and SKIP='^TestKill' choose files and leave out tests.
mutate: ## change a package in small ways, one at a time, and print the changes that its tests do not notice: PKG=./softroce/internal/cm
	@$(if $(PKG),,$(error PKG is not given: make mutate PKG=./softroce/internal/cm))
	nice $(GO) run ./tests/mutate $(if $(FILES),-files '$(FILES)') $(if $(SKIP),-skip '$(SKIP)') $(PKG)

hostile: ## the tests that need a device, on an unfriendly one from many seeds; RUNS=100 SEED=
	scripts/hostile $(or $(RUNS),100) $(SEED)

device: ## the tests that need a device, in the VM; PKG=./rdmacm RUN=TestX V=1: those, and show each
	scripts/device $(if $(RUN),-run '$(RUN)') $(if $(V),-v) $(PKG)

baseline: ## the data path takes as many instructions as it did; UPDATE=-update writes them anew
	UPDATE=$(UPDATE) scripts/test baseline

##@ Other systems, compilers and kernels

cross: ## build for where C cannot be called: PLATFORMS, or all of Go's
	scripts/cross $(PLATFORMS)

check: ## C compilers for six architectures agree with every layout, value and prototype
	scripts/test check

arch: ## Go's own layouts on five more architectures, emulated
	scripts/test arch

# KERNELS="trixie sid" runs only those.
kernels: ## the tests that need a device, on the kernels of four Debian suites; prints a table
	@scripts/kernels $(KERNELS)

gpu: ## regions of other devices' memory (DMA buffers), in the VM
	scripts/test gpu

versions: ## the libraries of rdma-core 44.0 and 65.0 on the newest kernel, in the VM
	scripts/test versions

##@ Longer, in the VM

# INTEROP= runs the most telling cases only.
interop: INTEROP ?= all
interop: ## our programs against the C ones between two hosts: a row for each case
	VERBENA_INTEROP=$(INTEROP) scripts/interop

# INTEROP_SOFT=telling runs the most telling cases only.
interop-soft: ## our programs and the C ones on the device in user space, without a VM: a row for each case
	VERBENA_INTEROP_SOFT=$(or $(INTEROP_SOFT),all) scripts/test interop-soft

# INTEROP_UDP=telling runs the most telling cases only; a regular expression, those with such names.
interop-udp: ## our programs on the device in user space, on the network, against C's on Soft-RoCE, in the VM
	VERBENA_INTEROP_UDP='$(or $(INTEROP_UDP),all)' scripts/interop-udp

# APPLICATIONS=telling runs the most telling ones only.
applications: ## programs of others on the device in user space, and over TCP: how long each takes
	VERBENA_APPLICATIONS=$(or $(APPLICATIONS),all) scripts/test applications

suites: ## test suites of others on the device in user space, without a VM; UPDATE=-update writes down anew what passes
	UPDATE=$(UPDATE) scripts/test suites

scale: ## 1,000 connections between two hosts
	VERBENA_SCALE=1000 VERBENA_VM_KERNEL=current VERBENA_VM_HOSTS=2 VERBENA_VM_MEM=2G \
		$(GO) test -count 1 -v -run 'TestScale$$' -exec $(VM) ./rdmacm

scale-rsocket: ## 1,000 connections of rsocket through one listener, beside C's, in a guest of 2 GiB
	VERBENA_SCALE=1000 VERBENA_VM_KERNEL=current VERBENA_VM_MEM=2G VERBENA_VM_TIMEOUT=$(or $(VERBENA_VM_TIMEOUT),7200) \
		$(GO) test -count 1 -v -timeout 0 -run 'TestScale$$' -exec $(VM) ./rsocket

loss: ## connections between two hosts that lose packets and vanish
	VERBENA_VM_KERNEL=current VERBENA_VM_HOSTS=2 VERBENA_VM_TIMEOUT=1200 \
		$(GO) test -count 1 -v -p 1 -timeout 20m -run 'TestLoss|TestTransferToVanishedPeer|TestHostVanishes' -exec $(VM) ./rdmacm ./rsocket

# VERBENA_SOAK=10m VERBENA_SOAK_SEED=1 make soak: for how long, and the seed that an earlier run has printed.
soak: export VERBENA_SOAK := $(or $(VERBENA_SOAK),10m)
soak: export VERBENA_VM_TIMEOUT := $(or $(VERBENA_VM_TIMEOUT),7200)
soak: ## connect, transfer, crowd, attack, reject, cancel, kill and close at random: for VERBENA_SOAK on one host, and between two with loss
	VERBENA_VM_KERNEL=current VERBENA_VM_HOSTS=2 VERBENA_VM_MEM=2G \
		$(GO) test -race -v -timeout 0 -run '^TestSoak' -exec $(VM) ./rdmacm

# VERBENA_SOAK=10m VERBENA_SOAK_SEED=1 make soak-rsocket: as above.
soak-rsocket: export VERBENA_SOAK := $(or $(VERBENA_SOAK),10m)
soak-rsocket: ## connections of rsocket with everything at random: for VERBENA_SOAK on the device in user space, and then in the VM
	VERBENA_DEVICE=soft $(GO) test -race -count 1 -v -timeout 0 -run '^TestSoak$$' ./rsocket
	VERBENA_VM_TIMEOUT=$(or $(VERBENA_VM_TIMEOUT),7200) $(GO) test -race -count 1 -v -timeout 0 -run '^TestSoak$$' -exec $(VM) ./rsocket

##@ The bindings

generate: headers ## C headers -> headers/api -> generated
	@for v in $(VERSIONS); do (set -x; $(GO) run ./gen scan -headers .cache/headers/$$v -version $$v) || exit 1; done
	$(GO) run ./gen emit

headers: ## download the pinned headers; nothing is installed
	scripts/fetch-headers $(VERSIONS)

upgrade: ## bindings for a newer rdma-core: VERSION=65.0 [HEADERS=folder] [SUITE=sid]
	@$(if $(VERSION),,$(error VERSION is not given: make upgrade VERSION=65.0))
	@SUITE=$(SUITE) scripts/upgrade $(VERSION) $(HEADERS)

.PHONY: apidiff
# SINCE=v0.1.0 names another tag or commit.
apidiff: ## what has changed since the last tag in what programs import
	scripts/apidiff $(SINCE)

.PHONY: release
# COMMIT=v0.1.0 names another commit than HEAD. make release-check makes it twice and tries it.
release: ## the files of a release in dist: a Debian package, an image, archives, a bill of materials, checksums
	scripts/setup release
	scripts/release $(COMMIT)

.PHONY: release-check
release-check: ## the files of a release are the same bytes twice, and what is in them runs
	scripts/test release

coverage: ## what is bound, and what is not and why; writes docs/proof/coverage.md
	$(GO) run ./gen coverage >docs/proof/coverage.md
	@cat docs/proof/coverage.md

##@ Measured

bench: ## posting and polling beside C, here and in the VM; installs what is missing
	scripts/bench

measure: ## time, processor time and memory that scan, emit and a cold build take
	$(GO) test -run '^$$' -bench . -benchtime 3x ./gen

.PHONY: firstbuild
firstbuild: ## time that each package takes when a program is built for the first time, and the size of the program
	scripts/firstbuild

cmtime: ## connection rate and the time of each step beside C's, in the VM
	$(GO) test -run '^$$' -bench CMTime -benchtime 1x -exec $(VM) ./tests/cmtime

##@ Last

clean: ## remove what was built and downloaded
	rm -rf bin dist .cache
