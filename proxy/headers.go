package proxy

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/catchment-dev/edge/proxy/http1"
)

// stripHop removes what is meant for one connection only (RFC 9110 section
// 7.6.1): the fields that Connection names and those that are hop-by-hop by
// definition. Framing is hop-by-hop too: each side writes its own.
func stripHop(h *http1.Header) {
	named := h.Tokens("Connection")
	h.Keep(func(name string) bool {
		name = strings.ToLower(name)
		switch name {
		case "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization",
			"proxy-authentication-info", "te", "transfer-encoding", "upgrade", "content-length", "http2-settings":
			return false
		}
		return !slices.Contains(named, name)
	})
}

// ours says whether only we may set the field. Upstreams that speak CGI see
// "_" and "." as "-", so those spellings are ours too.
func ours(name string) bool {
	name = strings.NewReplacer("_", "-", ".", "-").Replace(strings.ToLower(name))
	switch name {
	case "forwarded", "x-real-ip", "x-request-id":
		return true
	}
	return strings.HasPrefix(name, "x-forwarded-") || strings.HasPrefix(name, "x-edge-")
}

// forwardHeader makes the header that the upstream gets. Clients are not
// trusted, so what they say about themselves is replaced, not extended.
func forwardHeader(r *Request, c connInfo, id string) http1.Header {
	h := slices.Clone(r.Header)
	stripHop(&h)
	h.Keep(func(name string) bool { return !ours(name) && !strings.EqualFold(name, "Expect") })
	h = slices.Insert(h, 0, http1.Field{Name: "Host", Value: r.Host})
	h.Add("X-Forwarded-For", c.client.Addr().String())
	h.Add("X-Forwarded-Proto", c.scheme)
	h.Add("X-Forwarded-Host", r.Host)
	h.Add("X-Request-Id", id)
	return h
}

// hostname returns the host part of an authority as routes compare it: lower
// case, without port, brackets and the dot of a fully qualified name.
func hostname(authority string) string {
	host := authority
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host = host[:i]
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		a, err := netip.ParseAddr(strings.TrimSuffix(inner, "]"))
		if err == nil {
			return a.String()
		}
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
