# The two commands of a fresh box, as root: make demo, make test.
# Debian 12 and the Go of go.mod are needed; the rest is installed.

GO := $(shell command -v go || echo /usr/local/go/bin/go)
export PATH := $(dir $(GO)):$(PATH)

SHELL := /bin/bash
# A clone that belongs to somebody else has a version that git does not tell.
VCS := $(shell git rev-parse HEAD >/dev/null 2>&1 && echo true || echo false)

.PHONY: help build generate check test demo bench bench-xdp bench-failover bench-health sim-flapping sim-guard reload-storm model lab-floor bench-gossip image image-repro image-test deb deb-test rollout-test clean

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
	rm -rf out/test # run.sh: one late test of thousands on a busy machine is told (out/test/flaky.txt) instead of stopping everything
	bash test/rerun/run.sh out/test units "$$($(GO) list ./... | grep -v /test/)" -race -timeout 20m
	bash test/rerun/run.sh out/test labs "$$($(GO) list ./test/... | grep -v -e '/e2e$$' -e '/test/image$$' -e '/test/rollout$$')" -race -timeout 30m -p 1
	bash test/rerun/run.sh out/test image ./test/image -race -timeout 20m -run '^TestShort' # the rest of it needs an image
	bash test/rerun/run.sh out/test rollout ./test/rollout -race -timeout 20m -skip '^(TestByHand|TestManyBoxes|TestUpgradeRole)$$' # these are of make rollout-test alone
	bash test/rerun/run.sh out/test e2e ./test/e2e -v -timeout 40m # it builds the daemons with the race detector; the lab's relays need the speed

image: ## the appliance: disk images, payload, SBOM in out/image (PROFILE=cloud|metal VERSION=1.2.0; keys: docs/image.md)
	sh test/install.sh image
	image/build.sh $(or $(PROFILE),cloud)

image-repro: image ## build it, then again from a copy in another folder: the same bytes
	image/repro.sh $(or $(PROFILE),cloud)

image-test: ## boots what make image has built, and breaks it: updates, power cuts, wrong configurations; within 20 minutes; writes out/bench/image.json (PROFILE=, TEST= for a part, LONG=1 for more). TEST=TestFleet, for itself: Ansible and two machines
	sh test/install.sh test
	mkdir -p out/bench
	$(GO) test -v -count=1 -timeout 40m -parallel 4 -run '$(or $(TEST),^Test)' -skip '$(if $(TEST),^$$,^TestFleet$$)' ./test/image -args -profile $(or $(PROFILE),cloud) -image $(CURDIR)/out/image -cache $(CURDIR)/out/cache/image -figures $(CURDIR)/out/bench/image.json $(if $(LONG),-long)

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

bench-failover: ## how soon a site that fails is out of the routers, and what is lost; writes out/bench/failover.json
	sh test/install.sh test
	mkdir -p out/bin out/bench
	set -o pipefail; $(GO) test -run '^$$' -bench '^BenchmarkSpeaker$$' -benchtime 1x -timeout 15m ./bgp | $(GO) run ./test/bench out/bench/speaker.json
	$(GO) build -buildvcs=$(VCS) -o out/bin/failover ./test/failover
	@exec out/bin/failover -append out/bench/speaker.json

bench-health: ## 2,000 probes a second beside HAProxy and the bare system calls; writes out/bench/health.json
	sh test/install.sh test
	mkdir -p out/bench
	set -o pipefail; $(GO) test -run '^$$' -bench '^Benchmark2000ProbesPerSecond$$' -benchtime 1x -timeout 15m ./health | $(GO) run ./test/bench out/bench/health.json health.Benchmark2000ProbesPerSecond/

bench-gossip: ## 300 members in one process: how soon a claim is at all, what each sends and receives at rest; then cuts of 20 s, 75 s and 10 min; writes out/bench/gossip.json
	sh test/install.sh test
	mkdir -p out/bench
	$(GO) test -count=1 -v -timeout 60m -run '^TestMembers$$' ./guard -args -members 300 -gossip $(CURDIR)/out/bench/gossip.json
	$(GO) test -count=1 -v -timeout 60m -run '^TestLongPartitions$$' ./guard -args -cuts 20s,75s,10m

reload-storm: ## 1,000 configuration reloads of a box with two routers: no session resets, nothing withdrawn, no request lost
	sh test/install.sh test
	$(GO) test -v -count=1 -timeout 30m -run '^TestReloadStorm$$' ./test/e2e -args -reloads 1000

lab-floor: ## nine sites in the lab break at once, 50 times, half of them under a partition: never fewer than the floor at the routers; writes out/bench/floor.json
	sh test/install.sh test
	mkdir -p out/bin out/bench
	$(GO) build -buildvcs=$(VCS) -o out/bin/floor ./test/floor
	@exec out/bin/floor

sim-flapping: ## a day of dependencies that flap, in virtual time: how often the routers hear of it; writes out/bench/flapping.json
	mkdir -p out/bench
	$(GO) test -count=1 -v -timeout 15m -run '^TestDayOfFlapping$$' ./cmd/edged -args -hours 24 -patterns 99 -flapping $(CURDIR)/out/bench/flapping.json

sim-guard: ## a million schedules of the guard in virtual time; writes out/bench/sim-guard.json
	mkdir -p out/bench
	$(GO) test -count=1 -v -timeout 60m -run '^TestSimGuard$$' ./guard/promise -args -schedules 1000000 -sim-guard $(CURDIR)/out/bench/sim-guard.json

model: ## the model of the guard's protocol in all its forms, also those that take minutes and gigabytes; writes out/bench/model.json
	sh test/install.sh test
	mkdir -p out/bench
	$(GO) test -v -count=1 -timeout 60m ./test/model -args -long -figures $(CURDIR)/out/bench/model.json

deb: ## the package for Debian 12, 13 and Ubuntu, in out/deb (VERSION=1.2.0)
	sh test/install.sh go
	image/deb/build.sh

deb-test: ## install, upgrade, remove and purge it in fresh roots of bookworm and trixie with systemd and the daemons at work; build it twice
	sh test/install.sh test
	$(GO) test -v -count=1 -timeout 40m -run '^(TestInstallFresh|TestBuildAfresh)$$' ./image/deb -args -roots bookworm,trixie -cache $(CURDIR)/out/cache/deb

rollout-test: ## nine Debian systems over five sites, rolled by Ansible under traffic; within an hour; writes out/bench/rollout.json (TEST= and PARTS= for a part)
	sh test/install.sh test
	mkdir -p out/bench
	$(GO) test -v -count=1 -timeout 75m -run '$(or $(TEST),^Test)' ./test/rollout -args -long -figures $(CURDIR)/out/bench/rollout.json $(if $(PARTS),-parts '$(PARTS)')

clean: ## remove out
	rm -rf out
