package setup

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const serialLogin = "systemd/system/serial-getty@.service.d/edge-rescue.conf"

// oneVolume is a volume EDGECFG whose files are in a folder; "" is none.
type oneVolume struct{ dir string }

func (v oneVolume) Find(label string) ([]string, error) {
	if v.dir == "" || label != configLabel {
		return nil, nil
	}
	return []string{"vdb"}, nil
}

func (v oneVolume) Open(string) (string, func(), error) { return v.dir, func() {}, nil }

func (v oneVolume) ESP() (string, bool) { return "", false }

// espLabel stands for the EFI partition in volumes.
const espLabel = "esp"

// volumes are folders by label and device.
type volumes map[string]map[string]string

func (v volumes) Find(label string) ([]string, error) { return sortedKeys(v[label]), nil }

func (v volumes) ESP() (string, bool) {
	for device := range v[espLabel] {
		return device, true
	}
	return "", false
}

func (v volumes) Open(device string) (string, func(), error) {
	for _, all := range v {
		if dir, ok := all[device]; ok {
			if dir == "" {
				return "", nil, errors.New("input/output error")
			}
			return dir, func() {}, nil
		}
	}
	return "", nil, os.ErrNotExist
}

// notes is a System that writes down what it was told.
type notes struct{ told *[]string }

func (n notes) Hostname(name string) error { return n.tell("hostname " + name) }
func (n notes) Shadow(string) error        { return n.tell("shadow") }
func (n notes) ReloadUnits(start []string, again ...string) error {
	for _, unit := range start {
		again = append(again, "start "+unit)
	}
	return n.tell(strings.Join(append([]string{"reload units"}, again...), " "))
}
func (n notes) tell(what string) error {
	*n.told = append(*n.told, what)
	return nil
}

func testPlace(dir string) Place {
	p := Place{Run: filepath.Join(dir, "run"), Etc: filepath.Join(dir, "etc"), Sys: filepath.Join(dir, "sys"), System: notes{new([]string)}, Owner: storeOptions(dir).Owner}
	os.MkdirAll(p.Etc, 0o755)
	if _, err := os.Stat(filepath.Join(p.Etc, "shadow")); err != nil {
		os.WriteFile(filepath.Join(p.Etc, "shadow"), []byte("root:*:20000:0:99999:7:::\nedged:!:20000::::::\n"), 0o640)
	}
	return p
}

// box is a box that is booted again and again.
type box struct {
	t       *testing.T
	dir     string
	version string
	place   Place
	boots   int
	creds   []string
}

func newBox(t *testing.T) *box {
	dir := t.TempDir()
	nic := filepath.Join(dir, "sys/class/net/eth0")
	if err := os.MkdirAll(filepath.Join(nic, "device"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(nic, "address"), []byte("52:54:00:12:34:56\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return &box{t: t, dir: dir, version: "1.0.0", place: testPlace(dir)}
}

func (b *box) store() *Store {
	o := storeOptions(b.dir)
	o.Version = b.version
	return openStore(b.t, o)
}

// boot starts the box with a volume of these files (nil: none): /run is empty
// then.
func (b *box) boot(volume Tree) Result {
	b.t.Helper()
	b.boots++
	if err := os.RemoveAll(b.place.Run); err != nil {
		b.t.Fatal(err)
	}
	return b.again(volume)
}

// again runs the setup once more in the same boot.
func (b *box) again(volume Tree) Result {
	b.t.Helper()
	v := oneVolume{}
	if volume != nil {
		v.dir = writeTree(b.t, b.t.TempDir(), volume)
	}
	return b.with(v)
}

func (b *box) with(v Volumes) Result {
	b.t.Helper()
	r, err := Boot(Options{Store: b.store(), Credentials: b.creds, Volumes: v, Place: b.place, Version: b.version, BootID: "boot-" + string(rune('a'+b.boots))})
	if err != nil {
		b.t.Fatal(err)
	}
	b.check(r)
	return r
}

// check holds what must be true after every setup.
func (b *box) check(r Result) {
	b.t.Helper()
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(b.place.Run, name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			b.t.Fatal(err)
		}
		return string(text)
	}
	var kept Result
	if err := json.Unmarshal([]byte(read(resultFile)), &kept); err != nil {
		b.t.Fatal(err)
	}
	if d := cmp.Diff(r, kept); d != "" {
		b.t.Errorf("result.json: %s", d)
	}
	_, err := os.Stat(filepath.Join(b.place.Run, okFile))
	if (err == nil) != (r.State == OK) {
		b.t.Errorf("%s, and the daemons' leave to start: %v", r.State, err)
	}
	if calm := r.State == OK && len(r.Errors) == 0; calm != (read(issueFile) == "") {
		b.t.Errorf("%s, and the console shows %q", r.State, read(issueFile))
	}
	for _, name := range []string{resultFile, issueFile} {
		if text := read(name); strings.Contains(text, secretMark) || strings.ContainsAny(text, "\\\x1b") && name == issueFile {
			b.t.Errorf("%s shows what it must not: %s", name, text)
		}
	}
	if text := r.String(); strings.Contains(text, secretMark) {
		b.t.Errorf("the log shows a secret: %s", text)
	}
	if rescue := read(networkDir + "/" + rescueFile); (rescue == "") != (r.State == OK) {
		b.t.Errorf("%s, and the network of rescue is %q", r.State, rescue)
	}
}

func (b *box) want(r Result, state string, generation int, part string) {
	b.t.Helper()
	text := strings.Join(append(r.Errors, r.Notes...), "\n")
	if r.State != state || r.Generation != generation || !strings.Contains(text, part) || part == "" && len(r.Errors) > 0 {
		b.t.Errorf("%s, generation %d, %q; want %s, %d, %q", r.State, r.Generation, text, state, generation, part)
	}
}

func (b *box) run(name string) string {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(b.place.Run, name))
	if err != nil {
		b.t.Fatal(err)
	}
	return string(text)
}

func TestFirstBoot(t *testing.T) {
	b := newBox(t)
	good := goodTree(t)
	b.want(b.boot(nil), Unconfigured, 0, "")
	if text := b.run(issueFile); !strings.Contains(text, "NOT CONFIGURED") || !strings.Contains(text, "eth0  52:54:00:12:34:56  fe80::5054:ff:fe12:3456") || !strings.Contains(text, "169.254.77.1") {
		t.Errorf("the console shows:\n%s", text)
	}
	if text := b.run(serialLogin); !strings.Contains(text, "--autologin root") {
		t.Errorf("the serial line is closed: %s", text)
	}
	r := b.boot(good)
	b.want(r, OK, 1, "made from volume EDGECFG on vdb")
	if r.Source != "volume EDGECFG on vdb" {
		t.Errorf("source %q", r.Source)
	}
	if text := b.run(networkDir + "/10-uplink.network"); text != string(good["network/10-uplink.network"]) {
		t.Errorf("network: %q", text)
	}
	if text := b.run("edge-setup/authorized_keys"); text != string(good["authorized_keys"]) {
		t.Errorf("keys: %q", text)
	}
	if text := b.run(shadowFile); !strings.HasPrefix(text, "root:$y$j9T$") || !strings.Contains(text, "\nedged:!:") {
		t.Errorf("shadow: %q", text)
	}
	if told := *b.place.System.(notes).told; told[len(told)-1] != "hostname edge-a1.example.net" {
		t.Errorf("told %q", told)
	}
	// The same volume again, none at all, and once more within the boot.
	b.want(b.boot(good), OK, 1, "")
	b.want(b.boot(nil), OK, 1, "")
	b.want(b.again(good), OK, 1, "")
	// Other bytes are a new generation.
	b.want(b.boot(good.with(map[string]string{"hostname": "renamed\n"})), OK, 2, "")
}

// TestOperatorStays: what an operator applies is not undone by the volume that is
// still there, but by another one.
func TestOperatorStays(t *testing.T) {
	b := newBox(t)
	good := goodTree(t)
	b.boot(good)
	n := add(t, b.store(), good.changed("hold: 3s", "hold: 5s"))
	b.want(b.boot(good), OK, n, "")
	b.want(b.boot(good.changed("hold: 3s", "hold: 6s")), OK, n+1, "")
	b.want(b.boot(good), OK, n+2, "") // the first one, put back on purpose
}

func TestBadSource(t *testing.T) {
	b := newBox(t)
	good := goodTree(t)
	bad := good.changed("asn: 64512", "asn: 0").with(map[string]string{"authorized_keys": string(good["authorized_keys"]) + "nonsense\n"})
	r := b.boot(bad)
	b.want(r, Rescue, 0, "volume EDGECFG on vdb: edge.yaml:7:10: node.bgp.asn")
	if len(r.Errors) != 2 {
		t.Errorf("errors %q", r.Errors)
	}
	text := b.run(issueFile)
	if !strings.Contains(text, "RESCUE") || !strings.Contains(text, "edge.yaml:7:10") || !strings.Contains(text, "with the password") {
		t.Errorf("the console shows:\n%s", text)
	}
	if text := b.run("edge-setup/authorized_keys"); text != string(good["authorized_keys"]) {
		t.Errorf("keys: %q", text)
	}
	if _, err := os.Stat(filepath.Join(b.place.Run, serialLogin)); err == nil {
		t.Error("the serial line is open although there is a password")
	}
	// Mended without a reboot: nothing of rescue stays.
	b.want(b.again(good), OK, 1, "")
	// A bad one later: the last good one goes on, and the console says so.
	b.want(b.boot(bad), OK, 1, "edge.yaml:7:10")
	if text := b.run(issueFile); !strings.Contains(text, "ATTENTION") || !strings.Contains(text, "generation 1 is in force, and something is wrong") {
		t.Errorf("the console shows:\n%s", text)
	}
	b.want(b.boot(good.with(nil, "password", "edge.yaml")), OK, 1, "there is none")
}

func TestRescueWithoutPassword(t *testing.T) {
	b := newBox(t)
	b.boot(Tree{"edge.yaml": []byte("node: {}\n")})
	if text := b.run(serialLogin); !strings.Contains(text, "--autologin root") {
		t.Error(text)
	}
	b.want(b.again(goodTree(t)), OK, 1, "")
	if _, err := os.Stat(filepath.Join(b.place.Run, serialLogin)); err == nil {
		t.Error("the serial line stays open")
	}
}

func TestSourcesInOrder(t *testing.T) {
	good := goodTree(t)
	edgecfg, cidata, other := writeTree(t, t.TempDir(), good), t.TempDir(), writeTree(t, t.TempDir(), good.with(map[string]string{"hostname": "b\n"}))
	if err := os.WriteFile(filepath.Join(cidata, "user-data"), []byte("#cloud-config\nhostname: c\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	all := volumes{configLabel: {"vdb": edgecfg}, noCloudLabel: {"sr0": cidata}}
	b := newBox(t)
	b.want(b.with(all), OK, 1, "volume EDGECFG on vdb")
	b.want(b.with(volumes{noCloudLabel: all[noCloudLabel]}), OK, 1, "volume CIDATA on sr0: edge.yaml: there is none")
	b.want(b.with(volumes{configLabel: {"sda": edgecfg, "sda1": edgecfg}}), OK, 1, "")
	b.want(b.with(volumes{configLabel: {"sda": edgecfg, "sdb": other}}), OK, 1, "there are several volumes, and they differ: EDGECFG on sda, EDGECFG on sdb")
	b.want(b.with(volumes{configLabel: {"sr0": ""}}), OK, 1, "volume EDGECFG on sr0: it cannot be read: input/output error")
	b.creds = []string{t.TempDir()}
	if err := os.WriteFile(filepath.Join(b.creds[0], "edge.bundle"), pack(t, good.with(map[string]string{"hostname": "d\n"})), 0o400); err != nil {
		t.Fatal(err)
	}
	b.want(b.with(all), OK, 2, "generation 2 was made from credentials")
	// The EFI partition: after what systemd has taken from it, and decrypted.
	reboot := func() Result {
		t.Helper()
		if err := os.RemoveAll(b.place.Run); err != nil {
			t.Fatal(err)
		}
		return b.with(all)
	}
	esp := writeTree(t, t.TempDir(), Tree{"loader/credentials/edge.hostname.cred": []byte("e\n"), "loader/credentials/edge.bundle.cred": []byte("encrypted"), "loader/credentials/other": nil})
	all[espLabel] = map[string]string{"vda1": esp}
	b.want(reboot(), OK, 3, "generation 3 was made from credentials")
	b.creds = nil
	b.want(reboot(), OK, 3, "credentials: credential edge.bundle: it is not a whole tar")
	all[espLabel]["vda1"] = ""
	b.want(reboot(), OK, 4, "credentials of the EFI partition: input/output error")
}

func TestPendingAtBoot(t *testing.T) {
	b := newBox(t)
	good := goodTree(t)
	b.boot(good)
	s := b.store()
	n := add(t, s, good.changed("hold: 3s", "hold: 5s"))
	if err := s.SetPending(&Pending{From: 1, To: n, BootID: "boot-b"}); err != nil {
		t.Fatal(err)
	}
	b.want(b.again(good), OK, n, "") // the same boot: it goes on waiting
	b.want(b.boot(good), OK, 1, "generation 2 was taken back: the box was restarted before anybody had confirmed it")
	if r := s.State().Reverted; r == nil || r.From != n || r.To != 1 {
		t.Errorf("remembered: %+v", r)
	}
	if p, err := s.Pending(); p != nil || err != nil {
		t.Errorf("still pending: %+v %v", p, err)
	}
	b.want(b.boot(good), OK, 1, "")
}

// TestUpgradeAndBack: an older version finds the configuration that it left.
func TestUpgradeAndBack(t *testing.T) {
	b := newBox(t)
	good := goodTree(t)
	b.boot(good)
	if err := b.store().ConfirmBoot(); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, b.store().dirOf(1))
	b.version = "1.1.0"
	next := good.changed("hold: 3s", "hold: 4s")
	b.want(b.boot(next), OK, 2, "generation 2 was made")
	// 1.1.0 is not good and goes back: so does what only it had.
	b.version = "1.0.0"
	b.want(b.boot(next), OK, 1, "generation 2 was taken back: version 1.1.0 had made it, which was rolled back to 1.0.0")
	b.want(b.boot(next), OK, 1, "")
	if d := cmp.Diff(before, snapshot(t, b.store().dirOf(1))); d != "" {
		t.Errorf("generation 1 is another: %s", d)
	}
	// The other way round: a new source under 1.0.0 that no boot has confirmed
	// goes along to 1.1.0.
	last := good.changed("hold: 3s", "hold: 7s")
	b.want(b.boot(last), OK, 3, "")
	b.version = "1.1.0"
	b.want(b.boot(last), OK, 3, "")
	if err := b.store().ConfirmBoot(); err != nil {
		t.Fatal(err)
	}
	if good := b.store().State().Good; good["1.0.0"] != 1 || good["1.1.0"] != 3 {
		t.Errorf("good: %v", good)
	}
}

func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.Walk(dir, func(name string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			b, err := os.ReadFile(name)
			out[name] = info.ModTime().String() + string(b)
			return err
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestUnreadable: a version that cannot use the current generation takes the one
// with which it was good; one that was never good is to fail.
func TestUnreadable(t *testing.T) {
	b := newBox(t)
	good := goodTree(t)
	b.boot(good)
	if err := b.store().ConfirmBoot(); err != nil {
		t.Fatal(err)
	}
	n := add(t, b.store(), good.changed("hold: 3s", "hold: 5s"))
	broken := filepath.Join(b.store().dirOf(n), configFile)
	if err := os.WriteFile(broken, []byte("future: {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.version = "1.1.0"
	b.want(b.boot(nil), Rescue, 0, "generation 2: edge.yaml:1:1")
	if text := b.run("edge-setup/authorized_keys"); text != string(good["authorized_keys"]) {
		t.Errorf("keys: %q", text)
	}
	b.version = "1.0.0"
	b.want(b.boot(nil), OK, 1, "generation 1 is in force in its place")
}

// brokenSystem can do nothing.
type brokenSystem struct{}

func (brokenSystem) Hostname(string) error                 { return errors.New("no host name") }
func (brokenSystem) Shadow(string) error                   { return errors.New("no password") }
func (brokenSystem) ReloadUnits([]string, ...string) error { return errors.New("no systemd") }

// TestSmallTroubles: a box whose name or password cannot be set announces, and
// says so.
func TestSmallTroubles(t *testing.T) {
	b := newBox(t)
	b.place.System = brokenSystem{}
	r := b.boot(goodTree(t))
	b.want(r, OK, 1, "no password")
	if text := strings.Join(r.Errors, "\n"); !strings.Contains(text, "no host name") {
		t.Errorf("errors: %s", text)
	}
	// The password is tried again, not taken for set.
	b.place.System = notes{new([]string)}
	b.want(b.again(goodTree(t).with(nil, "authorized_keys", "password")), OK, 2, "nobody can log in")
}

func TestNoDisk(t *testing.T) {
	b := newBox(t)
	v := oneVolume{writeTree(t, t.TempDir(), goodTree(t))}
	r, err := Boot(Options{NoStore: "no space", Volumes: v, Place: b.place, Version: "1", BootID: bootA})
	if err != nil || r.State != Rescue || !strings.Contains(r.String(), "no space") {
		t.Errorf("%+v %v", r, err)
	}
	b.check(r)
}

// TestDamagedState: what only remembers must never keep a box down.
func TestDamagedState(t *testing.T) {
	b := newBox(t)
	good := goodTree(t)
	b.boot(good)
	for _, name := range []string{stateFile, PendingFile, trialFile} {
		if err := os.WriteFile(filepath.Join(b.dir, "edge-config", name), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := b.boot(good)
	if r.State != OK || r.Generation != 1 || len(r.Errors) > 0 {
		t.Errorf("%+v", r)
	}
}

// TestOthersFilesStay: only what a setup has placed is taken away by the next.
func TestOthersFilesStay(t *testing.T) {
	b := newBox(t)
	good := goodTree(t)
	b.boot(good)
	other := filepath.Join(b.place.Run, networkDir, "70-other.network")
	if err := os.WriteFile(other, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	same := filepath.Join(b.place.Run, networkDir, "10-uplink.network")
	before, err := os.Stat(same)
	if err != nil {
		t.Fatal(err)
	}
	b.again(good.with(map[string]string{"network/11-more.network": "[Match]\nName=eth1\n"}, "network/20-wg.netdev"))
	var have []string
	entries, err := os.ReadDir(filepath.Join(b.place.Run, networkDir))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		have = append(have, e.Name())
	}
	if got := strings.Join(have, " "); got != "10-uplink.link 10-uplink.network 11-more.network 70-other.network" {
		t.Errorf("files: %s", got)
	}
	if after, err := os.Stat(same); err != nil || !os.SameFile(before, after) {
		t.Errorf("a file that is the same was replaced: %v", err)
	}
}
