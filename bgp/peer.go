package bgp

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/catchment-dev/edge"
)

// samePeer says that a session with settings a need not be reset for b. The id
// is only our name for it.
func samePeer(a, b edge.Peer) bool {
	families := slices.Equal(a.Families, b.Families)
	a.ID, a.Families, b.ID, b.Families = "", nil, "", nil
	return families && a.Addr == b.Addr && a.ASN == b.ASN && a.LocalAddr == b.LocalAddr && a.Hold == b.Hold &&
		a.Keepalive == b.Keepalive && a.ConnectRetry == b.ConnectRetry && a.PasswordFile == b.PasswordFile &&
		a.Multihop == b.Multihop && a.Passive == b.Passive
}

// apiPeer is p as GoBGP takes it; key is the MD5 key, empty for none. Graceful
// restart stays off: it would keep a dead speaker in the routers.
func apiPeer(p edge.Peer, key string) *api.Peer {
	out := &api.Peer{
		Conf: &api.PeerConf{NeighborAddress: p.Addr.String(), PeerAsn: p.ASN, AuthPassword: key},
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime:               uint64(p.Hold / time.Second),
			KeepaliveInterval:      uint64(p.Keepalive / time.Second),
			ConnectRetry:           connectRetry(p.ConnectRetry),
			IdleHoldTimeAfterReset: 1, // 0 would be 30 s
		}},
		Transport: &api.Transport{PassiveMode: p.Passive},
	}
	if p.LocalAddr.IsValid() {
		out.Transport.LocalAddress = p.LocalAddr.String()
	}
	if p.Multihop > 0 {
		out.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: uint32(p.Multihop)}
	}
	for _, f := range p.Families {
		out.AfiSafis = append(out.AfiSafis, &api.AfiSafi{Config: &api.AfiSafiConfig{Family: apiFamily(f), Enabled: true}})
	}
	return out
}

// connectRetry is GoBGP's figure x for a pause of at most d: it waits x to 2x
// seconds between two connects, and up to x-1 (at least 1) for one to succeed.
func connectRetry(d time.Duration) uint64 { return uint64(max(1, d/time.Second/2)) }

func apiFamily(f edge.Family) *api.Family {
	afi := api.Family_AFI_IP
	if f == edge.IPv6 {
		afi = api.Family_AFI_IP6
	}
	return &api.Family{Afi: afi, Safi: api.Family_SAFI_UNICAST}
}

// readKey returns the MD5 key of p: the content of its file without the line
// end. Empty if p has none configured.
func readKey(p edge.Peer) (string, error) {
	if p.PasswordFile == "" {
		return "", nil
	}
	st, err := os.Stat(p.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("read password file: %w", err)
	}
	if !st.Mode().IsRegular() { // a pipe would block, a device never end
		return "", fmt.Errorf("read password file %s: not a regular file", p.PasswordFile)
	}
	f, err := os.Open(p.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("read password file: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, unix.TCP_MD5SIG_MAXKEYLEN+3)) // key, line end, one too many
	if err != nil {
		return "", fmt.Errorf("read password file: %w", err)
	}
	key := strings.TrimRight(string(b), "\r\n")
	switch {
	case key == "":
		return "", fmt.Errorf("password file %s is empty", p.PasswordFile)
	case len(key) > unix.TCP_MD5SIG_MAXKEYLEN:
		return "", fmt.Errorf("password in %s is longer than %d bytes", p.PasswordFile, unix.TCP_MD5SIG_MAXKEYLEN)
	}
	return key, nil
}

// testKey installs key on a socket of its own, as GoBGP will on its own. GoBGP
// only logs when that fails on its listener, and would then take connections
// in plain text.
func testKey(addr netip.Addr, key string) error {
	family := unix.AF_INET
	sig := unix.TCPMD5Sig{Keylen: uint16(len(key))}
	if addr.Is4() {
		a := addr.As4()
		copy(sig.Addr.Data[2:], a[:]) // behind the port of a sockaddr_in
	} else {
		family = unix.AF_INET6
		a := addr.As16()
		copy(sig.Addr.Data[6:], a[:]) // behind port and flow of a sockaddr_in6
	}
	sig.Addr.Family = uint16(family)
	copy(sig.Key[:], key)
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, &sig); err != nil {
		if errors.Is(err, unix.ENOPROTOOPT) {
			return errors.New("this kernel has no TCP MD5 (CONFIG_TCP_MD5SIG)")
		}
		return fmt.Errorf("install key: %w", err)
	}
	return nil
}
