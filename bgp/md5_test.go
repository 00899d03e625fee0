package bgp_test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// occupy listens on a port of the calling thread's namespace.
func occupy(port int) (release func() error, err error) {
	l, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port))
	if err != nil {
		return nil, err
	}
	return l.Close, nil
}

func (s *speaker) key(name, content string) string {
	s.t.Helper()
	path := s.dir + "/" + name
	must(s.t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// refuses waits until the peer's last error contains want, and the peer is
// down.
func (s *speaker) refuses(id string, want string) {
	s.t.Helper()
	eventually(s.t, func() string {
		for _, p := range s.state().Peers {
			if string(p.ID) == id && (p.Session == "established" || !strings.Contains(p.LastErr, want)) {
				return fmt.Sprintf("%s %q, want %q", p.Session, p.LastErr, want)
			}
		}
		return ""
	})
}

func TestMD5Dialling(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	keyed := newBird(t, s, 1, birdOptions{session: `password "s3cret key"; passive;`})
	plain := newBird(t, s, 2, birdOptions{})
	p := peerN(1)
	p.PasswordFile = s.dir + "/absent"
	in := intentOf(p, peerN(2))

	// No key: refused, the other goes on.
	s.set(in)
	s.refuses("r1", "peer refused: read password file: ")
	s.established("r2")
	plain.has(net4, normal4)
	// The file comes: nobody has to say anything again.
	s.key("absent", "s3cret key\r\n")
	s.established("r1")
	keyed.has(net4, normal4)
	if p := s.peer("r1"); p.LastErr != "" {
		t.Errorf("a refusal that is over is still shown: %q", p.LastErr)
	}

	// A key that cannot be had does not cost the session that has one.
	p.PasswordFile = s.key("empty", "\n")
	in.Speaker.Peers[0] = p
	s.set(in)
	if p := s.peer("r1"); p.Session != "established" || !strings.Contains(p.LastErr, "is empty") {
		t.Errorf("after an empty key: %s %q", p.Session, p.LastErr)
	}

	// A wrong key never connects.
	p.PasswordFile = s.key("wrong", "another key")
	in.Speaker.Peers[0] = p
	s.set(in)
	s.refuses("r1", "connect ")
	keyed.has(net4, nil)
	p.PasswordFile = ""
	in.Speaker.Peers[0] = p
	s.set(in)
	s.refuses("r1", "connect ")
	p.PasswordFile = s.dir + "/absent"
	in.Speaker.Peers[0] = p
	s.set(in)
	s.established("r1")
	if p := s.peer("r2"); p.Flaps != 0 {
		t.Errorf("the other peer has flapped: %+v", p)
	}
}

func TestMD5Listening(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	r := newBird(t, s, 1, birdOptions{session: `password "right";`})
	p := peerN(1)
	p.Passive = true
	p.PasswordFile = s.key("key", "right\n")
	in := intentOf(p)
	in.Speaker.Listen = 179
	s.set(in)
	s.established("r1")
	r.has(net4, normal4)

	// The key is for the router's connections too: it comes without one now.
	r.configure(birdOptions{})
	r.birdc("configure")
	eventually(t, func() string { return s.upFor("r1") })
	tried := time.Now()
	eventually(t, func() string {
		if up := s.peer("r1").Session == "established"; up {
			t.Fatal("a session without key was let in")
		}
		if time.Since(tried) < 4*time.Second {
			return "wait for some attempts of the router"
		}
		return ""
	})
	// Taken off the peer, the key is taken off the listening socket as well.
	p.PasswordFile = ""
	in.Speaker.Peers[0] = p
	s.set(in)
	s.established("r1")
	r.has(net4, normal4)
	// And put on again.
	p.PasswordFile = s.dir + "/key"
	in.Speaker.Peers[0] = p
	s.set(in)
	r.configure(birdOptions{session: `password "right";`})
	r.birdc("configure")
	s.established("r1")
	r.has(net4, normal4)
}

// upFor says that a peer is still up.
func (s *speaker) upFor(id string) string {
	for _, p := range s.state().Peers {
		if string(p.ID) == id && p.Session == "established" {
			return id + " is still up"
		}
	}
	return ""
}
