package boot

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net/netip"
	"strconv"
	"strings"
)

// listening is the state of a socket that listens, in /proc/net/tcp.
const listening = "0A"

// Listeners reads /proc/net/tcp or tcp6 (proc(5)) for the addresses at which a port
// is listened on. Lines that it does not understand are passed over.
func Listeners(r io.Reader, port uint16) []netip.AddrPort {
	var out []netip.AddrPort
	for s := bufio.NewScanner(r); s.Scan(); {
		f := strings.Fields(s.Text())
		if len(f) < 4 || f[3] != listening {
			continue
		}
		host, at, _ := strings.Cut(f[1], ":")
		n, err := strconv.ParseUint(at, 16, 16)
		if err != nil || uint16(n) != port {
			continue
		}
		if a, ok := hostAddr(host); ok {
			out = append(out, netip.AddrPortFrom(a, port))
		}
	}
	return out
}

// hostAddr reads an address as the kernel prints it: words of 32 bits in the order
// of the machine's bytes.
func hostAddr(s string) (netip.Addr, bool) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 4 && len(b) != 16 {
		return netip.Addr{}, false
	}
	for i := 0; i < len(b); i += 4 {
		binary.BigEndian.PutUint32(b[i:], binary.NativeEndian.Uint32(b[i:]))
	}
	return netip.AddrFromSlice(b)
}
