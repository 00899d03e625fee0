package ansible

import (
	"context"
	"testing"

	"github.com/catchment-dev/edge/test/lab"
)

// part is one thing that is done with a lab.
type part struct {
	name string
	run  func(context.Context) error
}

// goes through parts, each a test that tells is told of. The first that fails ends the
// whole: what comes after it would only show consequences.
func goes(ctx context.Context, t *testing.T, l *lab.Lab, tells func(*testing.T), parts []part) {
	t.Helper()
	for _, p := range parts {
		ok := t.Run(p.name, func(t *testing.T) {
			tells(t)
			if err := p.run(ctx); err != nil {
				t.Fatalf("%v\n%s", err, l.Logs(25))
			}
		})
		tells(t)
		if !ok {
			t.FailNow()
		}
	}
}
