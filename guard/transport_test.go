package guard

import (
	"bytes"
	"io"
	"net"
	"testing"

	"github.com/hashicorp/memberlist"
)

// bytesConn is a connection that has said b and closed.
type bytesConn struct {
	net.Conn
	*bytes.Reader
}

func (c bytesConn) Read(b []byte) (int, error) { return c.Reader.Read(b) }

// FuzzFrame: what is let through to memberlist has our frame, and a stream is
// let through whole.
func FuzzFrame(f *testing.F) {
	head, err := memberlist.AddLabelHeaderToPacket(nil, label)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte{}, true)
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), true)
	f.Add(append(bytes.Clone(head), sealVersion), true)
	f.Add(append(bytes.Clone(head), bytes.Repeat([]byte{sealVersion}, 60)...), true)
	f.Add(append(append(bytes.Clone(head), streamMark, 0, 0, 0, 99, sealVersion), make([]byte, 99)...), true)
	f.Add([]byte{streamMark, 0, 0, 0, 99, sealVersion, 7}, false)
	f.Add([]byte{streamMark, 255, 0, 0, 99, sealVersion, 7}, false)
	f.Fuzz(func(t *testing.T, b []byte, inbound bool) {
		dropped := 0
		tr := &transport{label: head, drop: func(string) { dropped++ }}
		if tr.refusePacket(b) == "" && (len(b) <= len(head)+sealSize || b[len(head)] != sealVersion) {
			t.Errorf("packet let through: %x", b)
		}
		s := &stream{Conn: bytesConn{Reader: bytes.NewReader(b)}, t: tr, inbound: inbound}
		got, err := io.ReadAll(s)
		switch {
		case len(b) == 0:
			if err != nil || dropped != 0 {
				t.Errorf("nothing was said: %v, %d counted", err, dropped)
			}
		case err == nil:
			if !bytes.Equal(got, b) {
				t.Errorf("stream %x comes out as %x", b, got)
			}
		case len(got) != 0 || dropped != 1:
			t.Errorf("refused stream: %x handed out, %d counted", got, dropped)
		}
	})
}
