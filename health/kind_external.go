package health

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/catchment-dev/edge"
)

// maxVantages is how many vantage points are asked at most.
const maxVantages = 64

// externalKind is the prober of kind external: vantage points elsewhere are
// asked whether they can reach us, all at once. Each answers by the status and
// the body that p expects, or not: that is a no. One that does not answer at all
// says nothing.
//
// With k = p.AtLeast, k who say yes are a pass; it is a fail if not even all the
// silent could make it k; else unknown.
type externalKind struct{ trust *trust }

func (k externalKind) Probe(ctx context.Context, p edge.Probe) error {
	urls := strings.Split(p.URLs, "\x00")
	switch {
	case len(urls) > maxVantages:
		return fmt.Errorf("%w: %d vantage points, at most %d", edge.ErrUnknown, len(urls), maxVantages)
	case p.AtLeast < 1 || p.AtLeast > len(urls):
		return fmt.Errorf("%w: %d of %d vantage points cannot be wanted", edge.ErrUnknown, p.AtLeast, len(urls))
	}
	client, err := k.client(ctx, p)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	asking, stop := context.WithCancel(ctx)
	defer stop()
	v := &votes{need: p.AtLeast, enough: stop}
	var all sync.WaitGroup
	for _, u := range urls {
		all.Go(func() { v.add(askVantage(asking, client, p, u)) })
	}
	all.Wait()
	if v.yes < p.AtLeast && errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("%w: stopped", edge.ErrUnknown)
	}
	return v.verdict()
}

// client asks from p.Source, over a connection for each question, and follows
// no redirect.
func (k externalKind) client(ctx context.Context, p edge.Probe) (*http.Client, error) {
	roots, err := k.trust.roots(ctx, p)
	if err != nil {
		return nil, err
	}
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            from(p.Source),
			DisableKeepAlives:      true,
			MaxResponseHeaderBytes: maxHead,
			TLSClientConfig:        &tls.Config{RootCAs: roots, InsecureSkipVerify: p.Insecure},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// vote is what one vantage point says.
type vote uint8

const (
	saysNothing vote = iota
	saysNo
	saysYes
)

// votes counts. It may be used by several goroutines at once.
type votes struct {
	need   int
	enough func() // called when the others cannot change the result

	mu              sync.Mutex
	yes, no, silent int
}

func (v *votes) add(said vote) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch said {
	case saysYes:
		v.yes++
	case saysNo:
		v.no++
	default:
		v.silent++
	}
	if v.yes >= v.need {
		v.enough()
	}
}

// verdict is the result, when all have been asked.
func (v *votes) verdict() error {
	if v.yes >= v.need {
		return nil
	}
	text := fmt.Sprintf("%d of %d vantage points reach us, wanted %d", v.yes, v.yes+v.no+v.silent, v.need)
	if v.silent > 0 {
		text += fmt.Sprintf(" (%d did not answer)", v.silent)
	}
	if v.yes+v.silent >= v.need {
		return fmt.Errorf("%w: %s", edge.ErrUnknown, text)
	}
	return errors.New(text)
}

// askVantage asks one. Whatever comes before the head of an answer (no address,
// no connection, a bad certificate) is no answer.
func askVantage(ctx context.Context, client *http.Client, p edge.Probe, where string) vote {
	u, err := url.Parse(where)
	if err != nil {
		return saysNothing
	}
	r := (&http.Request{Method: http.MethodGet, URL: u, Header: http.Header{
		"User-Agent": {"catchment-probe"}, "Accept": {"*/*"},
	}}).WithContext(ctx)
	answer, err := client.Do(r)
	if err != nil {
		return saysNothing
	}
	defer answer.Body.Close()
	want := p.Status
	if want == 0 {
		want = http.StatusOK
	}
	if answer.StatusCode != want {
		return saysNo
	}
	if p.Body == "" {
		return saysYes
	}
	b, err := io.ReadAll(io.LimitReader(answer.Body, maxBody))
	switch {
	case bytes.Contains(b, []byte(p.Body)):
		return saysYes
	case err != nil:
		return saysNothing
	}
	return saysNo
}
