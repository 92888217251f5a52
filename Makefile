# Everything that is done with this repository, from its top folder.

SHELL := /bin/bash
GO ?= go
VM := $(CURDIR)/tests/vm/rdma-vm
VERSIONS := 33.2 44.0 56.1 65.0
NEWEST := $(lastword $(VERSIONS))
# What is proven with a device, in the VM.
DEVICE_TESTS := ./ibverbs/... ./rdmacm ./examples/... ./tests/interop ./tests/cmtime ./tests/perf ./tests/rdmadoctor ./tests/versions
# C compilers for the six architectures that the bindings call C on, separated
# by commas. Only clang knows loong64 on Debian 12.
LOONG64_LIBC := .cache/loong64/usr/loongarch64-linux-gnu
LOONG64_CC := $(or $(shell command -v clang-16),clang) --target=loongarch64-linux-gnu --sysroot=$(LOONG64_LIBC)
CHECK_CC ?= gcc,clang,aarch64-linux-gnu-gcc,$(LOONG64_CC),powerpc64le-linux-gnu-gcc,riscv64-linux-gnu-gcc,s390x-linux-gnu-gcc
# GOARCH and the emulator that runs its programs.
EMULATED ?= arm64:qemu-aarch64 loong64:qemu-loongarch64 ppc64le:qemu-ppc64le riscv64:qemu-riscv64 s390x:qemu-s390x

.PHONY: help demo test build cross lint unit device kernels interop scale loss generate headers loong64 check arch coverage measure bench baseline cmtime soak upgrade clean

help: ## print this
	@sed -n 's/^\([a-z0-9]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: ## show Go and C programs exchange RDMA reads and writes; installs what is missing
	scripts/demo

test: ## prove everything, here and in the VM; installs what is missing
	scripts/test

build: ## build everything
	$(GO) build ./...
	$(GO) build -o bin/ ./cmd/...

# Without C, the packages are compiled for every platform of Go's, and everything,
# programs included, for one of each kind. Plan 9 has no errnos, which this
# module's errors are made of. Not optimised, and not linked, to be quick.
cross: PLATFORMS ?= $(filter-out plan9/%,$(shell $(GO) tool dist list))
cross: ## build for where C cannot be called: PLATFORMS, or all of Go's
	@set -e; for platform in $(PLATFORMS); do \
		packages="./ibverbs/... ./rdmacm"; \
		case $$platform in linux/386|linux/amd64|darwin/arm64|freebsd/amd64|windows/amd64) packages=./...;; esac; \
		echo "$$platform $$packages"; \
		CGO_ENABLED=0 GOOS=$${platform%/*} GOARCH=$${platform#*/} \
			$(GO) list -export -gcflags=all='-N -l' $$packages >/dev/null; \
	done

lint: ## vet, staticcheck and gofumpt
	$(GO) vet ./...
	$(GO) tool -modfile=tools/go.mod staticcheck ./...
	@files=$$($(GO) tool -modfile=tools/go.mod gofumpt -l cmd examples gen ibverbs internal rdmacm tests tools.go doc.go); \
	if [ -n "$$files" ]; then echo "gofumpt would change:"; echo "$$files"; exit 1; fi

unit: ## the tests that need no device
	$(GO) test -race ./...

device: ## the tests that need a device, in the VM
	VERBENA_VM_TIMEOUT=$${VERBENA_VM_TIMEOUT:-1200} $(GO) test -race -timeout 20m -p 1 -exec $(VM) $(DEVICE_TESTS)

# KERNELS="trixie sid" runs only those.
kernels: ## the tests that need a device, on the kernels of four Debian suites; prints a table
	@DEVICE_TESTS="$(DEVICE_TESTS)" scripts/kernels $(KERNELS)

# INTEROP= runs the most telling cases only.
interop: INTEROP ?= all
interop: ## our programs against the C ones between two hosts, in the VM: a row for each case
	set -o pipefail; VERBENA_INTEROP=$(INTEROP) VERBENA_VM_KERNEL=current VERBENA_VM_HOSTS=2 VERBENA_VM_MEM=2G VERBENA_VM_TIMEOUT=1200 \
		$(GO) test -count 1 -v -run Matrix -exec $(VM) ./tests/matrix | grep -v '^ *\(=== \|--- PASS\)\|^PASS\|^ok  .github'

scale: ## 1,000 connections between two hosts, in the VM
	VERBENA_SCALE=1000 VERBENA_VM_KERNEL=current VERBENA_VM_HOSTS=2 VERBENA_VM_MEM=2G \
		$(GO) test -count 1 -v -run 'TestScale$$' -exec $(VM) ./rdmacm

loss: ## connections between two hosts that lose packets and vanish, in the VM
	VERBENA_VM_KERNEL=current VERBENA_VM_HOSTS=2 VERBENA_VM_TIMEOUT=1200 \
		$(GO) test -count 1 -v -timeout 20m -run 'TestLoss|TestTransferToVanishedPeer' -exec $(VM) ./rdmacm

generate: headers ## C headers -> headers/api -> generated
	@for v in $(VERSIONS); do (set -x; $(GO) run ./gen scan -headers .cache/headers/$$v -version $$v) || exit 1; done
	$(GO) run ./gen emit

headers: ## download the pinned headers; nothing is installed
	scripts/fetch-headers $(VERSIONS)

loong64: ## unpack the C library's headers for loong64; nothing is installed
	scripts/debian-fetch trixie .cache/loong64 libc6-dev-loong64-cross linux-libc-dev-loong64-cross

check: headers loong64 ## C compilers for six architectures agree with every layout, value and prototype
	$(GO) run ./gen check -headers .cache/headers/$(NEWEST) -cc "$(CHECK_CC)"
	@echo "$(CHECK_CC)" | tr , '\n' | while read -r cc; do \
		for c in generated/*/stubs.c; do $$cc -fsyntax-only $$c || exit 1; done; \
	done && echo "the stubs compile with all of them"

arch: ## Go's own layouts on five more architectures, emulated
	@set -e; for pair in $(EMULATED); do \
		echo "linux/$${pair%:*}, in $${pair#*:}"; \
		GOARCH=$${pair%:*} CGO_ENABLED=0 $(GO) test -exec $${pair#*:} ./generated/... ./internal/enum; \
	done

coverage: ## what is bound, and what is not and why; writes docs/coverage.md
	$(GO) run ./gen coverage >docs/coverage.md
	@cat docs/coverage.md

measure: ## time and memory that scan, emit and a cold build take
	$(GO) test -run '^$$' -bench . -benchtime 3x ./gen

bench: ## posting and polling beside C, here and in the VM; installs what is missing
	scripts/bench

baseline: ## the data path takes as many instructions as it did; UPDATE=-update writes them anew
	VERBENA_REQUIRE_VALGRIND=1 $(GO) test -count 1 -v -run '^TestInstructions$$' ./ibverbs $(UPDATE)

cmtime: ## connection rate and the time of each step beside C's, in the VM
	$(GO) test -run '^$$' -bench CMTime -benchtime 1x -exec $(VM) ./tests/cmtime

# VERBENA_SOAK=10m VERBENA_SOAK_SEED=1 make soak: for how long, and the seed that an earlier run has printed.
soak: export VERBENA_SOAK := $(or $(VERBENA_SOAK),10m)
soak: export VERBENA_VM_TIMEOUT := $(or $(VERBENA_VM_TIMEOUT),7200)
soak: ## connect, transfer, crowd, attack, reject, cancel, kill and close at random, in the VM: for VERBENA_SOAK on one host, and between two with loss
	VERBENA_VM_KERNEL=current VERBENA_VM_HOSTS=2 VERBENA_VM_MEM=2G \
		$(GO) test -race -v -timeout 0 -run '^TestSoak' -exec $(VM) ./rdmacm

upgrade: ## bindings for a newer rdma-core: VERSION=65.0 [HEADERS=folder] [SUITE=sid]
	@$(if $(VERSION),,$(error VERSION is not given: make upgrade VERSION=65.0))
	@SUITE=$(SUITE) scripts/upgrade $(VERSION) $(HEADERS)

clean: ## remove what was built and downloaded
	rm -rf bin .cache
