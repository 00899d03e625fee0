package setup

import (
	"cmp"
	"io/fs"
	"path"
	"strings"

	"github.com/catchment-dev/edge"
)

// access is who may use a file of a generation.
type access struct {
	user, group string // of the box; "" is root
	mode        fs.FileMode
}

// accessOf derives from the configuration who may read name: the one daemon that
// opens it, and for what is no secret everybody. A secret that nothing names is
// root's. c is nil if only edge.yaml counts.
func accessOf(name string, c *edge.Config, by map[string]reader) access {
	switch by[name] {
	case byEdged: // guard refuses a node key that a group may read
		return access{"edged", "edged", 0o600}
	case byEdgebgp:
		return access{"edgebgp", "edgebgp", 0o600}
	case byProxy:
		who := "edgeproxy"
		if c != nil {
			who = cmp.Or(c.Local.ProxyUser, who)
		}
		return access{"", who, 0o640}
	}
	switch {
	case strings.HasPrefix(name, "health.d/"), by[name] == byAll && path.Dir(name) == "health.d":
		return access{"", "", 0o755}
	case by[name] == byAll, name == configFile, name == hostnameFile:
		return access{"", "", 0o644}
	case path.Ext(name) == ".netdev": // may hold a key of WireGuard
		return access{"", "systemd-network", 0o640}
	case strings.HasPrefix(name, "network/"), strings.HasPrefix(name, unitsDir+"/"):
		return access{"", "", 0o644}
	}
	return access{"", "", 0o600}
}

// readers says of each file that c names who opens it.
func readers(c *edge.Config, t Tree) map[string]reader {
	by := map[string]reader{}
	if c == nil {
		return by
	}
	for _, u := range uses(c, t) {
		if name, ours := strings.CutPrefix(u.path, Root+"/"); ours {
			by[name] = u.by
		}
	}
	return by
}
