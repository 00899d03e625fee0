package flaky

import (
	"flag"
	"os"
	"testing"
)

var mark = flag.String("mark", "", "the folder in which it remembers its first run")

func TestOnce(t *testing.T) {
	t.Run("inner part", func(t *testing.T) {
		if err := os.Mkdir(*mark+"/flaky", 0o700); err == nil {
			t.Error("the first time")
		}
	})
}

func TestOther(*testing.T) {}
