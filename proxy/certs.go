package proxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os/user"

	"github.com/catchment-dev/edge"
)

// loadCertificates reads the certificates of the configuration, all of them or
// none: a site that serves some of its names is harder to see than a reload
// that was refused.
func loadCertificates(list []edge.Certificate) ([]*tls.Certificate, error) {
	var out []*tls.Certificate
	var errs []error
	for _, c := range list {
		cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		switch {
		case errors.Is(err, fs.ErrPermission):
			errs = append(errs, fmt.Errorf("read certificate: %w: edgeproxy runs as user %s, which must be able to read the key", err, whoami()))
		case err != nil:
			errs = append(errs, fmt.Errorf("read certificate %s with key %s: %w", c.CertFile, c.KeyFile, err))
		default:
			out = append(out, &cert)
		}
	}
	return out, errors.Join(errs...)
}

func whoami() string {
	u, err := user.Current()
	if err != nil {
		return "?"
	}
	return u.Username
}

// pickCertificate chooses by SNI: a certificate that names the host and that
// the client can verify, else one that at least names it, else the first.
func pickCertificate(certs []*tls.Certificate, hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if len(certs) == 0 {
		return nil, errors.New("no certificate is configured")
	}
	var named *tls.Certificate
	for _, c := range certs {
		if hello.ServerName == "" || c.Leaf.VerifyHostname(hello.ServerName) != nil {
			continue
		}
		if hello.SupportsCertificate(c) == nil {
			return c, nil
		}
		if named == nil {
			named = c
		}
	}
	if named != nil {
		return named, nil
	}
	return certs[0], nil
}
