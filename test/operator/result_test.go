package operator

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseResult(t *testing.T) {
	text := `
PLAY [Converge] ****************************************************************

TASK [catchment.edge.edge_host : Install the package] **************************
changed: [a1]
ok: [b1]
failed: [c1] (item=x) => {"changed": false}
changed: [a1 -> localhost] => (item=y)

RUNNING HANDLER [catchment.edge.edge_config : Reload] **************************
changed: [b1]
fatal: [c1]: UNREACHABLE! => {"changed": false, "msg": "PLAY RECAP"}

PLAY RECAP *********************************************************************
a1                         : ok=12   changed=2    unreachable=0    failed=0    skipped=3    rescued=0    ignored=0   
b1                         : ok=2    changed=1    unreachable=0    failed=0    skipped=0    rescued=0    ignored=0   
c1                         : ok=0    changed=0    unreachable=1    failed=1    skipped=0    rescued=1    ignored=2   
`
	got, err := parseResult(text)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]Recap{
		"a1": {OK: 12, Changed: 2, Skipped: 3}, "b1": {OK: 2, Changed: 1},
		"c1": {Unreachable: 1, Failed: 1, Rescued: 1, Ignored: 2},
	}
	if d := cmp.Diff(want, got.Hosts); d != "" {
		t.Error(d)
	}
	install, reload := "catchment.edge.edge_host : Install the package", "catchment.edge.edge_config : Reload"
	if d := cmp.Diff([]Step{{"a1", install}, {"a1", install}, {"b1", reload}}, got.Changes); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]Step{{"c1", install}, {"c1", reload}}, got.Failures); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"a1", "b1"}, got.Changed()); d != "" {
		t.Error(d)
	}
	for _, none := range []string{"", "ERROR! the playbook could not be found", "PLAY RECAP ****"} {
		if _, err := parseResult(none); err == nil {
			t.Errorf("%q is a result", none)
		}
	}
}
