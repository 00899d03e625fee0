package ansible

import (
	"os/exec"
	"strings"
	"testing"
)

// TestUpgradeLost: a node that is not reached is no more than one that has failed, so that
// a rescue hears of it.
func TestUpgradeLost(t *testing.T) {
	r := newRolls(t)
	for _, args := range []string{"kind=deb", "kind=deb state=staged version=2.0.0", "kind=deb state=applied version=2.0.0"} {
		cmd := exec.CommandContext(t.Context(), "ansible", "d1", "-i", r.controller.inventory, "-m", "catchment.edge.edge_upgrade", "-a", args)
		cmd.Env, cmd.Dir = r.env, r.dir
		out, err := cmd.CombinedOutput()
		if said := string(out); err == nil || !strings.Contains(said, "d1 | FAILED!") || !strings.Contains(said, "it was not reached any more: ") {
			t.Errorf("%s: %v\n%s", args, err, said)
		}
	}
}
