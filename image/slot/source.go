package slot

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Source is where the files of a payload come from. The reader begins offset bytes
// into the file; one that cannot do so is refused with an error. An error that is
// Temporary is worth another try.
type Source interface {
	Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error)
}

// SourceOptions are how a source may be used. The zero value is the strict one.
type SourceOptions struct {
	// InsecureHTTP takes http:// as well. The manifest is signed and names the sums
	// of all files, so nothing false can be written; but whoever is in between sees
	// what is fetched, and can hold back what is new. So it is to be asked for.
	InsecureHTTP bool
	// CAFile has the certificates, in PEM, that sign the server's; "": the system's.
	CAFile string
	// Stall is how long nothing may come before the connection is given up; 0: 30 s.
	Stall time.Duration
}

// OpenSource returns the source for a folder, file://PATH or https://HOST/PATH.
func OpenSource(where string, o SourceOptions) (Source, error) {
	scheme, _, isURL := strings.Cut(where, "://")
	if !isURL {
		return folder(where), nil
	}
	u, err := url.Parse(where)
	if err != nil { // whose text may have a part of a password
		return nil, errors.New("read source: it is no URL: want https://HOST/PATH, and special characters in it as %XX")
	}
	where = SourceName(where)
	switch scheme = strings.ToLower(scheme); {
	case scheme == "file" && u.Host == "":
		return folder(u.Path), nil
	case scheme == "http" && !o.InsecureHTTP:
		return nil, fmt.Errorf("%s is not encrypted: use https://, or give --insecure-http (what is written is checked by the signature in any case)", where)
	case scheme != "https" && scheme != "http" || u.Host == "":
		return nil, fmt.Errorf("%s is no source: a folder, file://PATH or https://HOST/PATH", where)
	case u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("%s: names of files are added to it, so it may have no ? or #", where)
	}
	return newWeb(u, o)
}

// SourceName is a source as people may read it, and as it may be kept: a URL without
// the user and the password in it.
func SourceName(where string) string {
	if !strings.Contains(where, "://") {
		return where
	}
	u, err := url.Parse(where)
	if err != nil {
		return "a source that is no URL"
	}
	u.User = nil
	return u.String()
}

// folder is a source on a file system.
type folder string

func (f folder) Open(_ context.Context, name string, offset int64) (io.ReadCloser, error) {
	file, err := openFile(filepath.Join(string(f), name))
	if err != nil {
		return nil, err
	}
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// openFile opens a file to read it, and nothing else: a pipe would be waited for,
// which no context ends.
func openFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, f.Close(), fmt.Errorf("%s is not a file", path))
	}
	return f, nil
}

// web is a source behind HTTP.
type web struct {
	base   *url.URL
	user   *url.Userinfo // apart, so that no error has it; nil: none
	client *http.Client
	stall  time.Duration
}

const (
	dialTime    = 10 * time.Second
	headerTime  = 30 * time.Second
	stallTime   = 30 * time.Second
	maxRedirect = 5
	openStalls  = 4 // how many times the stall an answer may take to begin
)

func newWeb(base *url.URL, o SourceOptions) (*web, error) {
	plain := *base
	plain.User = nil
	w := &web{base: &plain, user: base.User, stall: stallTime}
	if o.Stall > 0 {
		w.stall = o.Stall
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		b, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read CA file: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("read CA file: no certificate in %s", o.CAFile)
		}
	}
	w.client = &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: conf, ForceAttemptHTTP2: true,
			DialContext:         (&net.Dialer{Timeout: dialTime}).DialContext,
			TLSHandshakeTimeout: dialTime, ResponseHeaderTimeout: min(headerTime, w.stall),
			// A payload is compressed; a server that compresses again would also
			// make offsets mean something else.
			DisableCompression: true,
			// One file after another is fetched: nothing is gained by keeping them.
			DisableKeepAlives: true,
		},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) >= maxRedirect {
				return &misled{fmt.Sprintf("more than %d redirects", maxRedirect)}
			}
			if r.URL.Scheme != "https" && (r.URL.Scheme != "http" || !o.InsecureHTTP) {
				return &misled{fmt.Sprintf("redirected to %s, which is not encrypted", r.URL.Redacted())}
			}
			return nil
		},
	}
	return w, nil
}

// misled is a redirect that is not followed.
type misled struct{ why string }

func (m *misled) Error() string { return m.why }

// Temporary marks an error of a source that may be gone at the next try.
type Temporary struct{ Err error }

func (t *Temporary) Error() string { return t.Err.Error() }

// Unwrap returns the error itself.
func (t *Temporary) Unwrap() error { return t.Err }

func (w *web) Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	at := w.base.JoinPath(name)
	ctx, cancel := context.WithCancelCause(ctx)
	req, err := http.NewRequestWithContext(ctx, "GET", at.String(), nil)
	if err != nil {
		cancel(nil)
		return nil, fmt.Errorf("fetch %s: %w", at.Redacted(), err)
	}
	if w.user != nil {
		password, _ := w.user.Password()
		req.SetBasicAuth(w.user.Username(), password)
	}
	if offset > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	// The transport bounds each step but one: the text of a redirect, which it reads.
	opening := time.AfterFunc(openStalls*w.stall, func() { cancel(errStalled) })
	resp, err := w.client.Do(req)
	opening.Stop()
	if err != nil {
		err = w.failed(ctx, err)
		cancel(nil)
		return nil, err
	}
	if err := answered(resp, offset); err != nil {
		resp.Body.Close()
		cancel(nil)
		return nil, fmt.Errorf("fetch %s: %w", at.Redacted(), err)
	}
	b := &body{ReadCloser: resp.Body, cancel: cancel, stall: w.stall}
	b.timer = time.AfterFunc(w.stall, func() { cancel(errStalled) })
	b.why = func(err error) error { return w.failed(ctx, err) }
	return b, nil
}

var errStalled = errors.New("nothing came for too long")

// failed says what became of a request, and whether to try again. A certificate
// that is not good does not get better, nor does a redirect, a name that nobody has
// or a server without TLS.
func (w *web) failed(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errStalled) {
		return &Temporary{fmt.Errorf("fetch from %s: %w", w.base.Host, errStalled)}
	}
	var tlsErr *tls.CertificateVerificationError
	var away *misled
	var name *net.DNSError
	if ctx.Err() != nil || errors.As(err, &tlsErr) || errors.As(err, &away) || errors.Is(err, http.ErrSchemeMismatch) || errors.As(err, &name) && name.IsNotFound {
		return err
	}
	return &Temporary{err}
}

// answered judges the status line. A server that ignores the range would have us
// append the beginning to the middle.
func answered(r *http.Response, offset int64) error {
	switch {
	case r.StatusCode >= 500 || r.StatusCode == http.StatusTooManyRequests || r.StatusCode == http.StatusRequestTimeout:
		return &Temporary{errors.New(r.Status)}
	case r.StatusCode == http.StatusOK && offset == 0:
		return nil
	case r.StatusCode == http.StatusOK:
		return errNoRange
	case r.StatusCode == http.StatusPartialContent && offset > 0:
		from, _, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Content-Range"), "bytes "), "-")
		if n, err := strconv.ParseInt(from, 10, 64); err != nil || n != offset {
			return fmt.Errorf("asked for what follows byte %d, and got %.60q", offset, r.Header.Get("Content-Range"))
		}
		return nil
	case r.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return errNoRange
	}
	return errors.New(r.Status)
}

// errNoRange says that a file has to be fetched from its beginning.
var errNoRange = errors.New("the server does not send a file from its middle")

// body gives up when nothing comes any more.
type body struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
	timer  *time.Timer
	stall  time.Duration
	why    func(error) error
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.timer.Reset(b.stall)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.why(err)
	}
	return n, err
}

func (b *body) Close() error {
	b.timer.Stop()
	b.cancel(nil)
	return b.ReadCloser.Close()
}
