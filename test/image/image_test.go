// Package image starts the image that make image has built, in virtual machines that
// are started as a box is, and then does to it what happens to boxes: updates that
// work and that do not, power cuts, wrong configurations, broken disks. Its machine is
// one of two sites of a small internet of test/lab; the other site is the same daemons
// without an image. make image-test runs it, as root; it fails where something is missing.
package image

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge/test/lab"
)

var (
	imageDir = flag.String("image", "../../out/image", "folder that make image has written")
	profile  = flag.String("profile", "cloud", "of the image: cloud or metal")
	cache    = flag.String("cache", "../../out/cache/image", "folder with the tools root of the build")
	figures  = flag.String("figures", "", "file for the figures; empty: none")
	seed     = flag.Uint64("seed", 0, "of the random moments; 0: by the clock")
	kills    = flag.Int("kills", 10, "how often the power is cut during an update")
	long     = flag.Bool("long", false, "also what takes longer than is good for each change")
	keep     = flag.String("keep", "", "folder for the consoles; empty: they go with the test")
)

func TestMain(m *testing.M) {
	lab.Janitor()
	os.Exit(m.Run())
}

// The patience for an emulated machine on a box that does other things too.
const (
	bootLimit  = 5 * time.Minute // from the firmware until it announces
	firmLimit  = 2 * time.Minute // from the firmware until the initrd has verified a root
	reachLimit = time.Minute     // what a machine that runs needs for anything
)

// built are the files of make image.
type built struct{ raw, version string }

func findBuilt(t *testing.T) built {
	t.Helper()
	raws, err := filepath.Glob(filepath.Join(*imageDir, "edge_*_"+*profile+".raw"))
	if err != nil || len(raws) != 1 {
		t.Fatalf("%s has %d images of the profile %s (%v), want one: make image PROFILE=%s", *imageDir, len(raws), *profile, err, *profile)
	}
	raw, err := filepath.Abs(raws[0])
	if err != nil {
		t.Fatal(err)
	}
	version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(raw), "edge_"), "_"+*profile+".raw")
	return built{raw: raw, version: version}
}

func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}
