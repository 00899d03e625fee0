package panics

import (
	"flag"
	"os"
	"testing"
)

var mark = flag.String("mark", "", "the folder in which it remembers its first run")

func TestPanics(*testing.T) {
	if err := os.Mkdir(*mark+"/panics", 0o700); err == nil {
		panic("once")
	}
}
