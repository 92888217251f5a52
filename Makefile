# Everything that is done with this repository, from its top folder.

GO ?= go
VM := $(CURDIR)/tests/vm/rdma-vm
VERSIONS := 33.2 44.0 56.1 65.0
# What is proven with a device, in the VM.
DEVICE_TESTS := ./generated/... ./ibverbs ./rdmacm ./tests/interop

.PHONY: help demo test build cross lint unit device generate headers check coverage measure clean

help: ## print this
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: ## show Go and C programs exchange RDMA reads and writes; installs what is missing
	scripts/demo

test: ## prove everything, here and in the VM; installs what is missing
	scripts/test

build: ## build everything
	$(GO) build ./...
	$(GO) build -o bin/ ./cmd/...

cross: ## build for where C cannot be called
	CGO_ENABLED=0 $(GO) build ./...
	GOOS=darwin $(GO) build ./...
	GOOS=windows $(GO) build ./...

lint: ## vet, staticcheck and gofumpt
	$(GO) vet ./...
	$(GO) run honnef.co/go/tools/cmd/staticcheck ./...
	@files=$$($(GO) run mvdan.cc/gofumpt -l cmd gen ibverbs internal rdmacm tests tools.go doc.go); \
	if [ -n "$$files" ]; then echo "gofumpt would change:"; echo "$$files"; exit 1; fi

unit: ## the tests that need no device
	$(GO) test -race ./...

device: ## the tests that need a device, in the VM
	$(GO) test -race -p 1 -exec $(VM) $(DEVICE_TESTS)

generate: headers ## C headers -> headers/api -> generated
	@for v in $(VERSIONS); do (set -x; $(GO) run ./gen scan -headers .cache/headers/$$v -version $$v) || exit 1; done
	$(GO) run ./gen emit

headers: ## download the pinned headers; nothing is installed
	scripts/fetch-headers $(VERSIONS)

check: headers ## a C compiler agrees with every layout and value
	$(GO) run ./gen check -headers .cache/headers/65.0

coverage: ## what is bound, and what is not and why; writes docs/coverage.md
	$(GO) run ./gen coverage >docs/coverage.md
	@cat docs/coverage.md

measure: ## time and memory that scan, emit and a cold build take
	$(GO) test -run '^$$' -bench . -benchtime 3x ./gen

clean: ## remove what was built and downloaded
	rm -rf bin .cache
