package many

import (
	"flag"
	"os"
	"testing"
)

var mark = flag.String("mark", "", "the folder in which they remember their first run")

func once(t *testing.T) {
	if err := os.Mkdir(*mark+"/"+t.Name(), 0o700); err == nil {
		t.Error("the first time")
	}
}

func TestA(t *testing.T) { once(t) }
func TestB(t *testing.T) { once(t) }
func TestC(t *testing.T) { once(t) }
func TestD(t *testing.T) { once(t) }
