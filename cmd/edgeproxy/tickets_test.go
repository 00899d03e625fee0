package main

import (
	"bytes"
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// openssl visits the VIP by openssl s_client and says whether its session was
// "New" or "Reused".
func (p *process) openssl(args ...string) string {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), "openssl", append([]string{"s_client", "-connect", p.vip() + ":443", "-servername", "www.example.net", "-ign_eof"}, args...)...)
	cmd.Stdin = strings.NewReader("GET /x HTTP/1.1\r\nHost: www.example.net\r\nConnection: close\r\n\r\n")
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("\norigin")) {
		p.t.Fatalf("openssl: %v\n%s", err, out)
	}
	for _, kind := range []string{"New", "Reused"} {
		if bytes.Contains(out, []byte("\n"+kind+", TLSv1.")) {
			return kind
		}
	}
	p.t.Fatalf("openssl:\n%s", out)
	return ""
}

// TestTicketsOfTwoProcesses: a session goes on at another box with the same file,
// and after a restart; a file that the process may not read is told of, and does
// not keep it from serving.
func TestTicketsOfTwoProcesses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tickets.key")
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("k"), 32))
	if err := os.WriteFile(file, []byte("# a key\n"+key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var boxes []*process
	for range 2 {
		s := newSite(t)
		s.tickets = file
		s.configure()
		p := s.start(s.command())
		p.awaitServing()
		boxes = append(boxes, p)
	}
	for _, v := range []string{"-tls1_2", "-tls1_3"} {
		session := filepath.Join(t.TempDir(), "session")
		if got := boxes[0].openssl(v, "-sess_out", session); got != "New" {
			t.Errorf("%s, first visit: %s", v, got)
		}
		if got := boxes[1].openssl(v, "-sess_in", session, "-sess_out", session); got != "Reused" {
			t.Errorf("%s, at the other box: %s", v, got)
		}
		boxes[0].cmd.Process.Signal(syscall.SIGTERM)
		if err := boxes[0].wait(); err != nil {
			t.Fatal(err)
		}
		boxes[0] = boxes[0].start(boxes[0].command())
		boxes[0].awaitServing()
		if got := boxes[0].openssl(v, "-sess_in", session); got != "Reused" {
			t.Errorf("%s, after a restart: %s", v, got)
		}
	}
	before, err := boxes[0].state()
	if err != nil || len(before.TicketKeys) != 1 || before.TicketErr != "" {
		t.Errorf("state %+v, %v", before, err)
	}
	if err := os.WriteFile(file, []byte(key+"\n"+key[:20]+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err = boxes[0].client.Call(t.Context(), "POST", "/v1/reload", nil, nil)
	if err == nil || !strings.Contains(err.Error(), "ticket_key_file: read ticket keys: "+file+": line 2 does not hold 32 bytes") || strings.Contains(err.Error(), key[:20]) {
		t.Errorf("reload of a bad file: %v", err)
	}
	if after, err := boxes[0].state(); err != nil || !slices.Equal(after.TicketKeys, before.TicketKeys) || after.TicketErr != "" {
		t.Errorf("after a refused reload: %+v, %v", after, err)
	}
	for _, p := range boxes {
		p.cmd.Process.Signal(syscall.SIGTERM)
		if err := p.wait(); err != nil { // what it has said can be read once it has ended
			t.Error(err)
		}
		if strings.Contains(p.stderr.String(), key[:20]) {
			t.Errorf("a key is in the log:\n%s", p.stderr)
		}
	}
}

func TestTicketsNotToBeRead(t *testing.T) {
	s := newSite(t)
	s.user, s.tickets = "nobody", s.path("tickets.key")
	s.configure()
	if err := os.WriteFile(s.tickets, []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := s.start(s.command())
	p.awaitServing()
	p.serves()
	st, err := p.state()
	if err != nil || len(st.TicketKeys) > 0 || !strings.Contains(st.TicketErr, "edgeproxy runs as user nobody, which must be able to read it") {
		t.Errorf("state %+v, %v", st, err)
	}
	if err := os.Chown(s.tickets, 65534, 0); err != nil {
		t.Fatal(err)
	}
	if err := p.client.Call(t.Context(), "POST", "/v1/reload", nil, &st); err != nil || len(st.TicketKeys) != 1 {
		t.Errorf("once it may read it: %+v, %v", st, err)
	}
}
