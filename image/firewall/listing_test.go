package firewall

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the listings anew")

// TestListing holds the rules, as an operator sees them, against those that were
// read and found good.
func TestListing(t *testing.T) {
	newPair(t)
	for name, rules := range map[string]Ruleset{
		"rescue":    Build(),
		"reference": Build(reference(t)),
	} {
		check(t, rules.Apply())
		got := listing(t)
		file := filepath.Join("testdata", name+".nft")
		if *update {
			check(t, os.WriteFile(file, []byte(got), 0o644))
		}
		want, err := os.ReadFile(file)
		check(t, err)
		if d := cmp.Diff(string(want), got); d != "" {
			t.Errorf("%s: (-want +got)\n%s", name, d)
		}
		// It may end up in somebody's nftables.conf: it must load.
		run(t, "flush ruleset\n"+got, "nft", "-f", "-")
		if again := listing(t); again != got {
			t.Errorf("%s: loaded from its own listing:\n%s", name, cmp.Diff(got, again))
		}
	}
}
