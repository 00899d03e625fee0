# The two commands of a fresh box, as root: make demo, make test.
# Debian 12 and the Go of go.mod are needed; the rest is installed.

GO := $(shell command -v go || echo /usr/local/go/bin/go)
export PATH := $(dir $(GO)):$(PATH)

SHELL := /bin/bash
# A clone that belongs to somebody else has a version that git does not tell.
VCS := $(shell git rev-parse HEAD >/dev/null 2>&1 && echo true || echo false)

.PHONY: help build generate check test demo bench bench-xdp clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1	/p' $(MAKEFILE_LIST)

build: ## the four commands, in out/bin
	sh test/install.sh go
	mkdir -p out/bin
	$(GO) build -trimpath -buildvcs=$(VCS) -o out/bin/ ./cmd/...

generate: ## compile the BPF program into the package that loads it
	$(GO) generate ./xdp

check: ## gofmt, vet, staticcheck, and that the committed BPF object is what its source gives
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "not formatted by gofmt:" $$unformatted; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	rm -rf out/_gen && mkdir -p out/_gen && cp -R xdp out/_gen/xdp && rm -f out/_gen/xdp/*_bpfel.*
	cd out/_gen/xdp && $(GO) generate gen.go
	for f in xdp/*_bpfel.*; do cmp "$$f" "out/_gen/$$f" || { echo "$$f is not what its source gives: make generate"; exit 1; }; done
	rm -rf out/_gen

test: ## everything that must hold; installs what it needs
	sh test/install.sh test
	$(MAKE) check
	$(GO) test -race -count=1 -timeout 10m $$($(GO) list ./... | grep -v /test/)
	$(GO) test -race -count=1 -timeout 10m -p 1 $$($(GO) list ./test/... | grep -v /e2e)
	$(GO) test -v -count=1 -timeout 10m ./test/e2e # it builds the daemons with the race detector; the lab's relays need the speed

demo: ## the whole product in a lab on this box, telling a story (KEEP=1 leaves it up)
	@sh test/install.sh demo
	@mkdir -p out/bin && $(GO) build -buildvcs=$(VCS) -o out/bin/demo ./test/demo
	@exec out/bin/demo $(if $(KEEP),-keep)

bench: ## the benchmarks; writes out/bench
	sh test/install.sh test
	mkdir -p out/bench
	set -o pipefail; $(GO) test -run '^$$' -bench . -benchmem -timeout 30m ./... | $(GO) run ./test/bench out/bench/go.json

bench-xdp: ## the packets of the data plane beside what it is compared with; writes out/bench/xdp.json
	sh test/install.sh test
	mkdir -p out/bench
	set -o pipefail; $(GO) test -run '^$$' -bench '^BenchmarkXDP$$' -benchtime 1x -timeout 15m ./xdp | $(GO) run ./test/bench out/bench/xdp.json xdp.BenchmarkXDP/

clean: ## remove out
	rm -rf out
