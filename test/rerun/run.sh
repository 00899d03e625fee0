#!/bin/bash
# Runs tests: run.sh OUT NAME PACKAGES [FLAGS of go test]. A test that has failed
# is run once more, alone and whole; OUT/flaky.txt names those that then passed.
#
# The tests have real kernels, BIRD and FRR, on machines that others use too: one
# of thousands that was too late there is to be looked at, but is not to be in the
# way of everything else. What is more than that fails at once: more than three
# tests (over all NAMEs), a data race, a panic, a time limit, a package that does
# not build, and what a package finds when its tests are over, as a leak.
set -euo pipefail
out=$1 name=$2 packages=${3:?no packages}
shift 3
most=3
flaky=$out/flaky.txt report=$out/$name.reruns.txt events=$out/$name.json
mkdir -p "$out"
touch "$flaky"
rm -f "$report" "$events"

format=standard-quiet
case " $* " in *" -v "*) format=standard-verbose ;; esac
code=0
go tool gotestsum --format "$format" --packages "$packages" \
	--rerun-fails=1 --rerun-fails-max-failures=$most --rerun-fails-run-root-test --rerun-fails-abort-on-data-race \
	--rerun-fails-report "$report" --jsonfile "$events" -- -count=1 "$@" || code=$?

# gotestsum runs again what has failed by the name of the test. A package whose
# tests have all passed has none to run: that "passes".
failed() { sed -n "s/.*\"Action\":\"fail\",\"Package\":\"\\([^\"]*\\)\",\"$1\":.*/\\1/p" "$events" | sort -u; }
for package in $(comm -23 <(failed Elapsed) <(failed Test)); do
	echo "$package failed, but no test of it: see above"
	[ $code != 0 ] || code=1
done

if [ -f "$report" ]; then
	sed -n 's/: 2 runs, 1 failures$/: failed, and passed when it ran alone/p' "$report" >>"$flaky"
fi
tests=$(grep -vc '\.\(Test\|Fuzz\)[^/:]*/' "$flaky") || true # without the parts of a test
[ "$tests" -gt 0 ] || exit $code
printf '\n%d FLAKY (%s):\n' "$tests" "$flaky"
cat "$flaky"
if [ "$tests" -gt $most ]; then
	echo "more than $most are no accident"
	[ $code != 0 ] || code=1
fi
exit $code
