package units

import (
	"encoding/json"
	"path/filepath"
	"strconv"
	"testing"
)

// TestJournal asks systemd-journald how much it would take of a /var: a tenth, and no
// more than 4 GiB. What an upgrade fetches must have room beside it.
func TestJournal(t *testing.T) {
	conf, err := filepath.Abs("../mkosi/mkosi.extra/usr/lib/systemd/journald.conf.d/10-edge.conf")
	if err != nil {
		t.Fatal(err)
	}
	const mib = 1 << 20
	for size, most := range map[int]int{512: 52, 4096: 410, 100 << 10: 4096} {
		out := run(t, "unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc",
			"bash", "testdata/journal.sh", conf, strconv.Itoa(size)+"M")
		var said struct {
			Where string `json:"JOURNAL_PATH"`
			Limit int    `json:"LIMIT,string"`
		}
		if err := json.Unmarshal([]byte(out), &said); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if filepath.Dir(said.Where) != "/var/log/journal" || said.Limit > most*mib || said.Limit < most*mib*9/10 {
			t.Errorf("of %d MiB it takes %d MiB in %s, want %d", size, said.Limit/mib, said.Where, most)
		}
	}
}
