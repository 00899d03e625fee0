package leaks

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

var mark = flag.String("mark", "", "the folder in which it remembers its first run")

// TestMain fails the first time, when all tests are over.
func TestMain(m *testing.M) {
	code := m.Run()
	if err := os.Mkdir(*mark+"/leaks", 0o700); err == nil {
		fmt.Println("a leak")
		code = 1
	}
	os.Exit(code)
}

func TestPasses(*testing.T) {}
