package rollout

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

// keyFiles are the files of the keys that the fleet shares, by their kinds.
var keyFiles = map[string]string{"gossip": "gossip.key", "ticket": "tickets.key"}

// keyFile is where the operator has the keys of a kind.
func (f *fleet) keyFile(kind string) string {
	return filepath.Join(f.operator.Fleet, "secrets", "fleet", keyFiles[kind])
}

// keys are the short names of the keys that the operator has of a kind.
func (f *fleet) operatorKeys(kind string) (names []string, err error) {
	text, err := os.ReadFile(f.keyFile(kind))
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			return nil, fmt.Errorf("the %s keys say %q", kind, line)
		}
		key, err := base64.StdEncoding.DecodeString(line)
		if err != nil {
			return nil, fmt.Errorf("read a %s key: %w", kind, err)
		}
		sum := sha256.Sum256(key)
		names = append(names, hex.EncodeToString(sum[:4]))
	}
	return names, nil
}

// keysInUse: the nodes go by the keys that the operator has.
func (f *fleet) keysInUse(ctx context.Context, nodes []*node) error {
	gossip, err := f.operatorKeys("gossip")
	if err != nil {
		return err
	}
	ticket, err := f.operatorKeys("ticket")
	if err != nil {
		return err
	}
	for _, n := range nodes {
		st, err := n.Status(ctx)
		if err != nil {
			return err
		}
		if !slices.Equal(st.Guard.Keys, gossip) || !slices.Equal(st.Proxy.TicketKeys, ticket) {
			return fmt.Errorf("%s has the keys %v and %v in use, the operator has %v and %v", n.Name(), st.Guard.Keys, st.Proxy.TicketKeys, gossip, ticket)
		}
	}
	return nil
}

// rotateKeys changes the keys that the fleet shares while clients ask and a node is off:
// it is not left out by itself, and when it is back a second run says what to do about it.
func rotateKeys(ctx context.Context, t *testing.T, f *fleet) error {
	down := f.nodes[len(f.nodes)-2] // of nine it has another beside it
	others := slices.DeleteFunc(slices.Clone(f.nodes), func(n *node) bool { return n == down })
	before, err := f.operatorKeys("gossip")
	if err != nil {
		return err
	}
	sessions, err := f.sessions(ctx)
	if err != nil {
		return err
	}
	return f.underTraffic(ctx, t, func(ctx context.Context) error {
		if err := down.powerOff(ctx); err != nil {
			return err
		}
		// A box that is off is named, and not left out without a word.
		if err := f.refuses(ctx, t, "rotate_keys", nil, nil, "the step use of the gossip keys does not begin",
			down.Name()+": it was not reached", "rotate_leave_out="+down.Name()); err != nil {
			return err
		}
		if _, err := f.playsOn(ctx, t, others, "rotate_keys", vars{"rotate_leave_out": down.Name()}); err != nil {
			return err
		}
		if err := errors.Join(f.keysInUse(ctx, others), f.resumes(ctx, sessions), down.switchOn(ctx)); err != nil {
			return err
		}
		if err := f.refuses(ctx, t, "rotate_keys", nil, nil,
			down.Name()+": it encrypts with "+before[0], "the playbook site with --limit brings it back"); err != nil {
			return err
		}
		if _, err := f.playsOn(ctx, t, []*node{down}, "site", nil, "--limit", down.Name()); err != nil {
			return err
		}
		if err := errors.Join(f.settled(ctx), f.keysInUse(ctx, f.nodes), f.resumes(ctx, sessions)); err != nil {
			return err
		}
		after, err := f.operatorKeys("gossip")
		if err == nil && slices.Contains(after, before[0]) {
			err = fmt.Errorf("the gossip keys are %v, and were %v", after, before)
		}
		return err
	})
}

// refuses has a playbook that is to fail, and to say why.
func (f *fleet) refuses(ctx context.Context, t *testing.T, playbook string, extra vars, args []string, says ...string) error {
	t.Helper()
	got, err := f.play(ctx, playbook, extra, args...)
	if err != nil {
		return err
	}
	t.Logf("%5.1f s  %s: %s", got.Took.Seconds(), playbook, got)
	if !got.Failed {
		return fmt.Errorf("%s is not refused\n%s", playbook, got.Text)
	}
	for _, text := range says {
		if !strings.Contains(got.Text, text) {
			return fmt.Errorf("%s does not say %q\n%s", playbook, text, got.Text)
		}
	}
	return nil
}

// sessions are TLS sessions, one of each client.
func (f *fleet) sessions(ctx context.Context) (map[string]tls.ClientSessionCache, error) {
	all := map[string]tls.ClientSessionCache{}
	for name, c := range f.Clients {
		if name == operatorName {
			continue
		}
		all[name] = tls.NewLRUClientSessionCache(1)
		if _, err := resume(ctx, c, all[name]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// resumes: no client is sent through a full handshake, wherever it gets to.
func (f *fleet) resumes(ctx context.Context, sessions map[string]tls.ClientSessionCache) error {
	for name, cache := range sessions {
		resumed, err := resume(ctx, f.Clients[name], cache)
		if err == nil && !resumed {
			err = errors.New("its TLS session is not known any more")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// resume asks once over a new connection, and says whether it went on with the session
// that is in the cache.
func resume(ctx context.Context, c *lab.Client, cache tls.ClientSessionCache) (bool, error) {
	transport := c.Transport(lab.Way{})
	defer transport.CloseIdleConnections()
	transport.TLSClientConfig.ClientSessionCache = cache
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, story.URL, nil)
	if err != nil {
		return false, fmt.Errorf("make request: %w", err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return false, fmt.Errorf("get %s: %w", story.URL, err)
	}
	defer resp.Body.Close()
	// The tickets come with the answer.
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return false, fmt.Errorf("read answer: %w", err)
	}
	return resp.TLS.DidResume, nil
}
