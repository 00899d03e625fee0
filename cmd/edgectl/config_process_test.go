package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// inTheirBox runs on a box of its own, as far as folders go: no systemd, nothing
// of this machine's state. $1 is edgectl, $2 the old and $3 the new edge.yaml, $4
// when the command that applies is killed.
const inTheirBox = `
set -euo pipefail
mount -t tmpfs none /run
mount -t tmpfs none /var/lib
mount -t tmpfs none /etc
mkdir /etc/edge
cp "$2" /etc/edge/edge.yaml
"$1" config apply "$3" --confirm-within 20s >/run/said 2>&1 &
pid=$!
if [ "$4" != never ]; then
	sleep "$4"
	kill -9 $pid 2>/dev/null || true
fi
wait $pid || true
applied=no
! cmp -s "$3" /etc/edge/edge.yaml || applied=yes
# The guard is a process of its own: it ends the change, whoever has died.
for i in $(seq 400); do
	[ -e /var/lib/edge-config/pending.json ] || break
	sleep 0.1
done
cmp "$2" /etc/edge/edge.yaml || { cat /run/said; "$1" config show; exit 1; }
# Also where the guard was never started nothing is stuck.
[ ! -e /var/lib/edge-config/pending.json ] || "$1" config revert
"$1" config apply "$3" >/dev/null
cmp "$3" /etc/edge/edge.yaml
echo "applied=$applied"
`

// TestConfigProcesses has the real command apply a change, on a box that was not
// made from the image, and kills it at different moments: nobody confirms, so
// the old configuration comes back.
func TestConfigProcesses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bin := filepath.Join(dir, "edgectl")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	old, next := filepath.Join(dir, "old"), filepath.Join(dir, "new")
	for path, hold := range map[string]int{old: 3, next: 4} {
		if err := os.WriteFile(path, configTree(t, hold)["edge.yaml"], 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// Each takes the twenty seconds that nobody confirms in, so all at once.
	var wg sync.WaitGroup
	for _, after := range []string{"never", "0.005", "0.01", "0.02", "0.03", "0.05", "0.1"} {
		wg.Go(func() {
			start := time.Now()
			out, err := exec.CommandContext(t.Context(), "unshare", "-m", "bash", "-c", inTheirBox, "bash", bin, old, next, after).CombinedOutput()
			if err != nil {
				t.Errorf("killed after %s: %v\n%s", after, err, out)
			}
			if after == "never" && (!strings.Contains(string(out), "applied=yes") || time.Since(start) < leastWithin) {
				t.Errorf("after %s:\n%s", time.Since(start), out)
			}
			t.Logf("killed after %s: %s", after, out)
		})
	}
	wg.Wait()
}
