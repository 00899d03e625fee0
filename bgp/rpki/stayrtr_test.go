package rpki

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// StayRTR (Debian package stayrtr) is a real far end: the cache that most
// networks run.

// stayrtr is a running process.
type stayrtr struct {
	at, metrics string
	stop        func()
}

// startStayRTR serves the JSON file, which it reads again every second.
func startStayRTR(t *testing.T, file string, more ...string) *stayrtr {
	t.Helper()
	s := &stayrtr{at: freePort(t), metrics: freePort(t)}
	var log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), unpacked("stayrtr"), append([]string{
		"-bind", s.at, "-metrics.addr", s.metrics, "-cache", file, "-checktime=false", "-refresh", "1",
		"-rtr.refresh", "3600", "-rtr.retry", "1", "-rtr.expire", "7200"}, more...)...)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: sh test/install.sh test", err)
	}
	s.stop = sync.OnceFunc(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("stayrtr %v:\n%s", more, log.Bytes())
		}
	})
	t.Cleanup(s.stop)
	return s
}

// unpacked is where test/install.sh has unpacked a server, or the name of that of
// the system.
func unpacked(name string) string {
	for _, dir := range []string{"bin", "sbin"} {
		path := filepath.Join("/usr/local/lib/catchment-test", name, "usr", dir, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return name
}

// freePort is an address of loopback that nobody listened on a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// start runs a client against real caches.
func start(t *testing.T, cfg Config) *Client {
	t.Helper()
	c := New(Options{})
	if err := c.Set(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return c
}

// eventually waits until ok says yes.
func eventually(t *testing.T, c *Client, what string, ok func(*Set, Status) bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		set, status := c.Current()
		if ok(set, status) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not %s: %d VRPs, %+v", what, set.Len(), status)
		}
	}
}

func writeVRPs(t *testing.T, path string, vrps ...VRP) {
	t.Helper()
	var roas []string
	for _, v := range vrps {
		roas = append(roas, fmt.Sprintf(`{"asn":%d,"prefix":"%s","maxLength":%d,"ta":"x"}`, v.ASN, v.Prefix, v.MaxLength))
	}
	next := path + ".new"
	text := `{"metadata":{"buildtime":"` + time.Now().UTC().Format(time.RFC3339) + `"},"roas":[` + strings.Join(roas, ",") + `]}`
	if err := errors.Join(os.WriteFile(next, []byte(text), 0o644), os.Rename(next, path)); err != nil {
		t.Fatal(err)
	}
}

func TestStayRTR(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vrps.json")
	writeVRPs(t, path, inFile()...)
	cache := startStayRTR(t, path)
	c := start(t, only(cache.at))
	valid := func(prefix string, asn uint32) func(*Set, Status) bool {
		return func(s *Set, _ Status) bool { return s.Validate(netip.MustParsePrefix(prefix), asn).Validity == Valid }
	}
	eventually(t, c, "valid, IPv4", valid("192.0.2.0/24", 64500))
	eventually(t, c, "valid, IPv6", valid("2001:db8:1::/48", 64501))
	eventually(t, c, "in version 1", func(_ *Set, s Status) bool {
		return s.Source == "rtr "+cache.at+" version 1" && time.Until(s.Expires) > 7000*time.Second
	})

	// A notification brings what is new, long before the refresh interval.
	_, before := c.Current()
	writeVRPs(t, path, vrp("192.0.2.0/24", 24, 1), vrp("2001:db8::/32", 48, 64501), vrp("198.51.100.0/24", 24, 0))
	eventually(t, c, "changed", valid("192.0.2.0/24", 1))
	if set, s := c.Current(); s.Serial == before.Serial || set.Len() != 3 || set.Validate(netip.MustParsePrefix("192.0.2.0/24"), 64500).Validity != InvalidOrigin {
		t.Errorf("%d VRPs, %+v, before %+v", set.Len(), s, before)
	}
	t.Run("export", func(t *testing.T) { exported(t, "http://"+cache.metrics+"/rpki.json") })

	cache.stop()
	eventually(t, c, "in trouble", func(_ *Set, s Status) bool { return strings.Contains(s.LastErr, cache.at) && s.VRPs == 3 })
	// One with another session and other data, at the same address.
	writeVRPs(t, path, vrp("192.0.2.0/24", 24, 64500))
	startStayRTR(t, path, "-bind", cache.at)
	eventually(t, c, "back", func(s *Set, st Status) bool {
		return s.Len() == 1 && st.LastErr == "" && valid("192.0.2.0/24", 64500)(s, st)
	})
}

// exported reads what StayRTR itself writes as JSON.
func exported(t *testing.T, url string) {
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	data, err := parseFile(t.Context(), bytes.NewReader(b), time.Now(), 100)
	if err != nil || data.set.Len() != 3 {
		t.Errorf("%v of %s", err, b)
	}
}

func TestStayRTRVersion0(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vrps.json")
	writeVRPs(t, path, inFile()...)
	cache := startStayRTR(t, path, "-protocol", "0")
	c := start(t, only(cache.at))
	eventually(t, c, "in version 0", func(set *Set, s Status) bool {
		return set.Len() == 2 && s.Source == "rtr "+cache.at+" version 0" && s.LastErr == ""
	})
	writeVRPs(t, path, inFile()[0])
	eventually(t, c, "changed", func(set *Set, s Status) bool { return set.Len() == 1 })
}
