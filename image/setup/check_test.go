package setup

import (
	"strings"
	"testing"
)

func TestGoodTreeIsGood(t *testing.T) {
	c, problems := Check(goodTree(t))
	if len(problems) > 0 || c == nil || c.Local.ID != "a1" {
		t.Fatal(problems)
	}
}

// TestCheck: each mistake has a line with its place, and none shows a secret.
func TestCheck(t *testing.T) {
	good := goodTree(t)
	other := goodTree(t)
	public := strings.SplitAfter(string(good["authorized_keys"]), " ")[1]
	for name, c := range map[string]struct {
		tree Tree
		want string
	}{
		"no edge.yaml":         {good.with(nil, "edge.yaml"), "edge.yaml: there is none"},
		"a bad value":          {good.changed("asn: 64512", "asn: 0"), "edge.yaml:7:10: node.bgp.asn: "},
		"a secret is missing":  {good.with(nil, "secrets/ring.seed"), "edge.yaml:11: fleet.ring_seed_file: /etc/edge/secrets/ring.seed is not in this configuration"},
		"a secret elsewhere":   {good.changed("/etc/edge/secrets/ring.seed", "/etc/edge/ring.seed"), "/etc/edge/ring.seed is not in this configuration; add it, as /etc/edge/secrets/NAME"},
		"another node's key":   {good.with(map[string]string{"secrets/node.key": string(other["secrets/node.key"])}), "secrets/node.key: node.key_file: its public half is "},
		"a key of another use": {good.with(map[string]string{"secrets/node.key": string(good["secrets/gossip.key"])}), "secrets/node.key: node.key_file: it does not hold a PEM block"},
		"two readers":          {good.changed("/etc/edge/secrets/bgp/r.key", "/etc/edge/secrets/gossip.key"), "is that of fleet.guard.key_file as well, which another daemon opens"},
		"a short seed":         {good.with(map[string]string{"secrets/ring.seed": secretMark}), "secrets/ring.seed: fleet.ring_seed_file: it has 7 characters"},
		"a gossip key":         {good.with(map[string]string{"secrets/gossip.key": "# x\n" + secretMark}), "secrets/gossip.key: fleet.guard.key_file: line 2 does not hold"},
		"no gossip key":        {good.with(map[string]string{"secrets/gossip.key": "# x\n"}), "it has 0 keys"},
		"a ticket key":         {good.with(map[string]string{"secrets/tickets.key": "\n" + secretMark}), "secrets/tickets.key: fleet.proxy.ticket_key_file: line 2 does not hold"},
		"no ticket keys":       {good.with(nil, "secrets/tickets.key"), "fleet.proxy.ticket_key_file: /etc/edge/secrets/tickets.key is not in this configuration"},
		"one file for both":    {good.changed("/etc/edge/secrets/tickets.key", "/etc/edge/secrets/gossip.key"), "is that of fleet.guard.key_file as well, which another daemon opens"},
		"an empty BGP key":     {good.with(map[string]string{"secrets/bgp/r.key": "\n"}), "secrets/bgp/r.key: node.bgp.peers[0].password_file: it is empty"},
		"a long BGP key":       {good.with(map[string]string{"secrets/bgp/r.key": strings.Repeat("x", 81)}), "longer than 80 bytes"},
		"another TLS key":      {good.with(map[string]string{"secrets/tls/web.key": string(other["secrets/tls/web.key"])}), "it is not the private key of its certificate"},
		"no certificate":       {good.with(map[string]string{"secrets/tls/web.crt": secretMark}), "it holds no certificate"},
		"no network":           {good.with(nil, "network/10-uplink.network"), "network: there is no file *.network"},
		"a section":            {good.with(map[string]string{"network/10-uplink.network": "[Match]\nName=eth0\n[Netwrok]\nDHCP=yes\n"}), `network/10-uplink.network:3: "[Netwrok]" is not a section`},
		"no match":             {good.with(map[string]string{"network/10-uplink.network": "[Network]\nDHCP=yes\n"}), "the section [Match] is missing or empty"},
		"a gateway":            {good.with(map[string]string{"network/10-uplink.network": "[Match]\nName=eth0\n[Network]\nGateway=10.0.0\n"}), `:4: Gateway="10.0.0": expected an IP address`},
		"an address":           {good.with(map[string]string{"network/10-uplink.network": "[Match]\nName=eth0\n[Network]\nAddress=10.0.0.1\n"}), "expected ADDRESS/BITS"},
		"no section":           {good.with(map[string]string{"network/10-uplink.network": "Name=eth0\n[Match]\nName=a\n"}), `:1: "Name" stands in no section`},
		"not an assignment":    {good.with(map[string]string{"network/20-wg.netdev": "[NetDev]\nName=wg0\n" + secretMark + "\n"}), "20-wg.netdev:3: expected [SECTION] or KEY=VALUE"},
		"a private ssh key":    {good.with(map[string]string{"authorized_keys": "-----BEGIN OPENSSH PRIVATE KEY-----\n"}), "authorized_keys:1: this is a private key"},
		"a broken ssh key":     {good.with(map[string]string{"authorized_keys": "# me\nssh-ed25519 " + public[:20] + "\n"}), "authorized_keys:2: it is not the public key of ssh"},
		"no ssh key":           {good.with(map[string]string{"authorized_keys": "# nobody\n"}), "authorized_keys: it has no key"},
		"a plain password":     {good.with(map[string]string{"password": secretMark + "\n"}), "password: it is not one line with a hash"},
		"two lines":            {good.with(map[string]string{"password": "$6$salt$abcdefgh\nroot::0\n"}), "password: it is not one line with a hash"},
		"a field too many":     {good.with(map[string]string{"password": "$6$salt$abcdefgh:0:0\n"}), "password: it is not one line with a hash"},
		"a host name":          {good.with(map[string]string{"hostname": "edge_1\n"}), "hostname: expected one line"},
		"a hook":               {good.with(map[string]string{"health.d/10-disk": "exit 0\n"}), "health.d/10-disk: it cannot be executed; begin it with #!"},
		"a hook of Windows":    {good.with(map[string]string{"health.d/10-disk": "#!/bin/sh\r\nexit 0\r\n"}), "its first line ends with a carriage return; save it"},
		"a hook is missing":    {good.with(nil, "health.d/10-disk"), "fleet.health.probes[0].command: /etc/edge/health.d/10-disk is not in"},
	} {
		_, problems := Check(c.tree)
		if text := problems.Error(); len(problems) != 1 || !strings.Contains(text, c.want) || strings.Contains(text, secretMark) {
			t.Errorf("%s:\n got %s\nwant %s", name, text, c.want)
		}
	}
}

// TestEveryProblemAtOnce: who mends one thing at a time needs a boot for each.
func TestEveryProblemAtOnce(t *testing.T) {
	tree := goodTree(t).changed("asn: 64512", "asn: 0").with(map[string]string{"hostname": "-", "password": "x", "authorized_keys": "x", "health.d/a": "x"}, "network/10-uplink.network")
	if _, problems := Check(tree); len(problems) != 6 {
		t.Errorf("%d problems:\n%s", len(problems), problems.Error())
	}
}

// TestNetworkd: what networkd takes is taken.
func TestNetworkd(t *testing.T) {
	const src = `; a comment
[Match]
Name=eth0 \
# a comment in the middle
  eth1
[Network]
Description=it has = signs and [brackets]
Address=
Address=2001:db8::1/64
Gateway=_ipv6ra
DHCP=ipv4
[Address]
Address=10.0.0.1/24
[Route]
Destination=10.0.0.0/8
Gateway=10.0.0.254
[Route]
Destination=2001:db8:1::1
[X-Ours]
any=thing
`
	if problems := checkNetworkFile("network/a.network", []byte(src)); len(problems) > 0 {
		t.Error(problems)
	}
}

func FuzzNetworkFile(f *testing.F) {
	f.Add([]byte("[Match]\nName=a\\\n b\n[Network]\nAddress=10.0.0.1/24\n"))
	f.Add([]byte("a=b\n[\n]\n=\n\\"))
	f.Fuzz(func(t *testing.T, src []byte) {
		for _, name := range []string{"network/a.network", "network/a.netdev", "network/a.link"} {
			lines := strings.Count(string(src), "\n") + 1
			for _, p := range checkNetworkFile(name, src) {
				if p.Line > lines || p.Message == "" {
					t.Errorf("%+v of %d lines", p, lines)
				}
			}
		}
	})
}

func FuzzLogin(f *testing.F) {
	f.Add([]byte("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAKPVzzZ3H1TV0oc2Ur3wUM1mVJbQIqyOMm0j1nQvd7h a@b\n"))
	f.Add([]byte("restrict,command=\"a\" ssh-rsa AAAA\r\n#x\n"))
	f.Fuzz(func(t *testing.T, src []byte) {
		good, _ := checkKeys(src)
		if again, problems := checkKeys(good); string(again) != string(good) || len(good) > 0 && len(problems) > 0 {
			t.Errorf("%q is good and is not: %v", good, problems)
		}
		if hash, problems := checkPassword(src); (hash == "") != (len(problems) > 0) || strings.ContainsAny(hash, ":\n\r\x00") {
			t.Errorf("hash %q: %v", hash, problems)
		}
		if name, problems := checkHostname(src); (name == "") != (len(problems) > 0) || strings.ContainsAny(name, "\n /\x00") {
			t.Errorf("name %q: %v", name, problems)
		}
	})
}

// TestReaders: who may read what follows from which daemon opens it.
func TestReaders(t *testing.T) {
	good := goodTree(t)
	c, _ := Check(good)
	by := readers(c, good)
	for name, want := range map[string]access{
		"secrets/node.key":          {"edged", "edged", 0o600},
		"secrets/ring.seed":         {"edged", "edged", 0o600},
		"secrets/gossip.key":        {"edged", "edged", 0o600},
		"secrets/blocked.txt":       {"edged", "edged", 0o600},
		"secrets/bgp/r.key":         {"edgebgp", "edgebgp", 0o600},
		"secrets/tls/web.key":       {"", "edgeproxy", 0o640},
		"secrets/tickets.key":       {"", "edgeproxy", 0o640},
		"secrets/tls/web.crt":       {"", "", 0o644},
		"secrets/old-gossip.key":    {"", "", 0o600},
		"password":                  {"", "", 0o600},
		"authorized_keys":           {"", "", 0o600},
		"edge.yaml":                 {"", "", 0o644},
		"hostname":                  {"", "", 0o644},
		"health.d/10-disk":          {"", "", 0o755},
		"network/10-uplink.network": {"", "", 0o644},
		"network/20-wg.netdev":      {"", "systemd-network", 0o640},
	} {
		if got := accessOf(name, c, by); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	if len(by) == 0 {
		t.Error("nobody reads anything")
	}
}
