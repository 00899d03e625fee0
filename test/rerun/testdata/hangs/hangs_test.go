package hangs

import (
	"flag"
	"os"
	"testing"
)

var mark = flag.String("mark", "", "the folder in which it remembers its first run")

func TestHangs(t *testing.T) {
	if err := os.Mkdir(*mark+"/hangs", 0o700); err == nil {
		<-t.Context().Done() // which is after the test
	}
}
