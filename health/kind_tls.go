package health

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/catchment-dev/edge"
)

// tlsKind is the prober of kind tls: a handshake, the verification of the
// certificate, and how long everything that the server sent is valid for. With
// Insecure it still looks at the dates: they are what the probe is for.
type tlsKind struct{ trust *trust }

func (k tlsKind) Probe(ctx context.Context, p edge.Probe) error {
	roots, err := k.trust.roots(ctx, p)
	if err != nil {
		return err
	}
	c, err := connect(ctx, from(p.Source), p, p.Addr.String())
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	s := security{name: serverName(p.Host, p.Addr.Addr().String()), roots: roots}
	t, err := s.handshake(ctx, c, p)
	if err != nil {
		return err
	}
	defer t.Close() // says goodbye, else a server may log a broken handshake
	return dates(t.ConnectionState().PeerCertificates, s.name, p.ExpiresIn, time.Now())
}

// serverName returns the name that a certificate must be for: that of a Host
// header, or the address if there is none.
func serverName(host, address string) string {
	if host == "" {
		return address
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return host
}

// security says what a TLS connection of a probe is held to.
type security struct {
	name  string         // of the server
	roots *x509.CertPool // nil: those of the system
	h2    bool           // HTTP/2 must be agreed upon
}

// handshake does the handshake over c and verifies, unless p is insecure.
func (s security) handshake(ctx context.Context, c net.Conn, p edge.Probe) (*tls.Conn, error) {
	config := &tls.Config{
		ServerName: s.name,
		// verify does it below, with words for what is wrong that do not
		// change from one run to the next.
		InsecureSkipVerify: true,
	}
	if s.h2 {
		config.NextProtos = []string{"h2"}
	}
	t := tls.Client(c, config)
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("tls handshake with %s: %w", s.name, broken(ctx, err, p))
	}
	state := t.ConnectionState()
	if !p.Insecure {
		if err := s.verify(state.PeerCertificates, time.Now()); err != nil {
			return nil, err
		}
	}
	if s.h2 && state.NegotiatedProtocol != "h2" {
		return nil, fmt.Errorf("tls handshake with %s: it does not offer HTTP/2", s.name)
	}
	return t, nil
}

// verify checks the chain as crypto/tls would (RFC 5280, for a server).
func (s security) verify(chain []*x509.Certificate, now time.Time) error {
	if len(chain) == 0 {
		return fmt.Errorf("%s sent no certificate", s.name)
	}
	if err := dates(chain[:1], s.name, 0, now); err != nil {
		return err
	}
	name := s.name
	if a, err := netip.ParseAddr(name); err == nil {
		name = a.WithZone("").String()
	}
	o := x509.VerifyOptions{Roots: s.roots, Intermediates: x509.NewCertPool(), DNSName: name, CurrentTime: now}
	for _, cert := range chain[1:] {
		o.Intermediates.AddCert(cert)
	}
	_, err := chain[0].Verify(o)
	if err == nil {
		return nil
	}
	return fmt.Errorf("certificate of %s: %w", s.name, distrust(err))
}

// distrust makes the error of a verification short and the same each time.
func distrust(err error) error {
	var invalid x509.CertificateInvalidError
	var host x509.HostnameError
	var system x509.SystemRootsError
	switch {
	case errors.As(err, &system):
		return fmt.Errorf("%w: read the roots of the system: %w", edge.ErrUnknown, system)
	case errors.As(err, &host):
		return errors.New(clean(host.Error()))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		// Its text has the time of day in it.
		return fmt.Errorf("its issuer %s is valid only from %s to %s", clean(invalid.Cert.Subject.String()),
			certTime(invalid.Cert.NotBefore), certTime(invalid.Cert.NotAfter))
	}
	return errors.New(clean(err.Error()))
}

// dates checks that every certificate of a chain is valid at now and for
// another margin.
func dates(chain []*x509.Certificate, name string, margin time.Duration, now time.Time) error {
	for i, cert := range chain {
		what := "certificate of " + name
		if i > 0 {
			what = fmt.Sprintf("certificate of %s, sent by %s,", clean(cert.Subject.String()), name)
		}
		left := cert.NotAfter.Sub(now)
		switch {
		case now.Before(cert.NotBefore):
			return fmt.Errorf("%s is not valid before %s", what, certTime(cert.NotBefore))
		case left < 0:
			return fmt.Errorf("%s expired at %s", what, certTime(cert.NotAfter))
		case left < margin:
			return fmt.Errorf("%s expires in %s, at %s, wanted %s", what, span(left), certTime(cert.NotAfter), span(margin))
		}
	}
	return nil
}

// certTime writes the time of a certificate.
func certTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") }

// span writes a duration in whole days or hours, so that a text that holds it
// changes seldom.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= 2*day:
		return fmt.Sprintf("%d days", d/day)
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d hours", d/time.Hour)
	case d >= time.Hour:
		return "an hour"
	}
	return "less than an hour"
}
