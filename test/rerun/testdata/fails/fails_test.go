package fails

import (
	"flag"
	"testing"
)

var _ = flag.String("mark", "", "not used")

func TestFails(t *testing.T) { t.Error("every time") }
