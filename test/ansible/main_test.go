// Package ansible runs the collection's modules and playbooks against real boxes
// of the lab, as ansible itself runs them. It needs root, and fails where
// something is missing.
package ansible

import (
	"os"
	"testing"

	"github.com/catchment-dev/edge/test/lab"
)

func TestMain(m *testing.M) {
	lab.Janitor()
	os.Exit(m.Run())
}
