package slot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// TestFetchEnds: a file that the server has cut, or that it never sends whole, is not
// asked for without end.
func TestFetchEnds(t *testing.T) {
	dir, want := newSystem("1.2.0").pack(t, newSigner(t))
	cut := t.TempDir()
	put(t, filepath.Join(cut, want.File(Verity).Name), make([]byte, want.File(Verity).PackedSize/2))
	for name, h := range map[string]func(*mirror, http.Handler) http.HandlerFunc{
		"cut on the server": func(*mirror, http.Handler) http.HandlerFunc {
			return http.FileServer(http.Dir(cut)).ServeHTTP
		},
		"no ranges, and breaks": func(_ *mirror, files http.Handler) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				r.Header.Del("Range")
				files.ServeHTTP(&limited{w, 10}, r)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMirror(t, h, dir)
			from := m.source(t)
			f := &Fetcher{From: from, Dir: t.TempDir(), Free: plenty}
			file := want.File(Verity)
			most, tries := int64(0), 0
			for range 3 * fetchTries { // without the pauses
				at, err := f.more(t.Context(), file, f.path(file), func(int64) {})
				if temporary := (*Temporary)(nil); !errors.As(err, &temporary) {
					t.Fatalf("it reached %d: %v", at, err)
				}
				if at > most {
					most, tries = at, 0
				}
				tries++
			}
			if tries <= fetchTries {
				t.Errorf("each try counts as one that came further: it would go on for ever")
			}
		})
	}
}

// TestAgainEnds: with the clock of a test, the loop itself.
func TestAgainEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &Fetcher{From: &shortBody{}, Dir: t.TempDir(), Free: plenty}
		file := File{Part: Root, Name: "x", PackedSize: 100, PackedSHA256: strings.Repeat("0", 64)}
		start := time.Now()
		err := f.one(t.Context(), file, f.path(file), func(int64) {})
		if err == nil || !strings.Contains(err.Error(), "50 of 100 bytes") || !strings.Contains(err.Error(), "given up") {
			t.Error(err)
		}
		if took := time.Since(start); took > 2*time.Minute {
			t.Errorf("given up after %s", took)
		}
	})
}

// TestFetchOfGarbage: what an earlier process has left of a file is not what it had
// fetched; the file comes whole all the same, at once.
func TestFetchOfGarbage(t *testing.T) {
	dir, want := newSystem("1.2.0").pack(t, newSigner(t))
	m := newMirror(t, honest, dir)
	f := &Fetcher{From: m.source(t), Dir: t.TempDir(), Free: plenty}
	file := want.File(Root)
	put(t, f.path(file), make([]byte, file.PackedSize/2))
	if _, err := f.Fetch(t.Context(), want); err != nil {
		t.Error(err)
	}
}

// TestRedirectsAreFinal: one that is not followed is not asked for again.
func TestRedirectsAreFinal(t *testing.T) {
	m := newMirror(t, func(*mirror, http.Handler) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:9/x", http.StatusFound)
		}
	}, t.TempDir())
	_, err := fetchSmall(t.Context(), m.source(t), ManifestName, 10)
	if err == nil || !strings.Contains(err.Error(), "not encrypted") || m.asks.Load() != 1 {
		t.Errorf("asked %d times: %v", m.asks.Load(), err)
	}
	m = newMirror(t, func(*mirror, http.Handler) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "gopher://127.0.0.1:9/x", http.StatusFound)
		}
	}, t.TempDir())
	loose := must(OpenSource(m.URL, SourceOptions{CAFile: m.ca, InsecureHTTP: true}))
	if _, err := fetchSmall(t.Context(), loose, ManifestName, 10); err == nil || m.asks.Load() != 1 {
		t.Errorf("asked %d times: %v", m.asks.Load(), err)
	}
}

// TestNoTLS: a server that speaks plain HTTP is not asked again.
func TestNoTLS(t *testing.T) {
	var asks atomic.Int32
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	plain := &http.Server{ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			asks.Add(1)
		}
	}}
	done := make(chan struct{})
	go func() { plain.Serve(ln); close(done) }()
	defer func() { plain.Close(); <-done }()
	_, err = fetchSmall(t.Context(), must(OpenSource("https://"+ln.Addr().String(), SourceOptions{})), ManifestName, 10)
	if !errors.Is(err, http.ErrSchemeMismatch) || asks.Load() != 1 {
		t.Errorf("asked %d times: %v", asks.Load(), err)
	}
}

// TestRedirectThatStalls: the text of a redirect never comes.
func TestRedirectThatStalls(t *testing.T) {
	m := newMirror(t, func(*mirror, http.Handler) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(http.StatusFound)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	}, t.TempDir())
	_, err := m.source(t).Open(t.Context(), ManifestName, 0)
	var temporary *Temporary
	if !errors.As(err, &temporary) || !errors.Is(err, errStalled) {
		t.Error(err)
	}
}

// TestPipes: what is no file in the folder of a payload is refused, and not waited for.
func TestPipes(t *testing.T) {
	dir, want := newSystem("1.2.0").pack(t, newSigner(t))
	pipe := filepath.Join(dir, want.File(Root).Name)
	os.Remove(pipe)
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (&Fetcher{From: folder(dir)}).Fetch(t.Context(), want); err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Error(err)
	}
	if _, err := folder(dir).Open(t.Context(), want.File(Root).Name, 0); err == nil {
		t.Error("a pipe is opened")
	}
	if err := unpack(t.Context(), pipe, want.File(Root), nil); err == nil {
		t.Error("a pipe is unpacked")
	}
	if _, err := folder(t.TempDir()).Open(t.Context(), ".", 0); err == nil {
		t.Error("a folder is opened")
	}
}

// TestLockIsOfRoot: who can open the file can keep root from it.
func TestLockIsOfRoot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(path, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
}

// shortBody is a source that has half of each file, and cannot begin in the middle.
type shortBody struct{}

func (*shortBody) Open(_ context.Context, _ string, offset int64) (io.ReadCloser, error) {
	if offset > 0 {
		return nil, errNoRange
	}
	return io.NopCloser(strings.NewReader(strings.Repeat("x", 50))), nil
}

// TestStateIsReadAgain: however much the checks of an operator have to say, what is
// kept can be read, and the last of it is there.
func TestStateIsReadAgain(t *testing.T) {
	s := State{t.TempDir()}
	for i := range 5 {
		b := Boot{ID: fmt.Sprint(i), Version: "1.2.0"}
		for n := range 100 { // of 3 KB each, as they are kept
			b.Failed = append(b.Failed, Failure{Check: fmt.Sprintf("hook:%d", n), Reason: strings.Repeat("\x01", 500)})
		}
		if err := s.AddBoot(b); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := s.Boots(); err != nil || len(list) == 0 || len(list) == 5 || list[len(list)-1].ID != "4" {
		t.Errorf("%d boots, %v", len(list), err)
	}
	for i := range 12 {
		if err := s.Refuse(Refused{Version: fmt.Sprint(i), Check: "bgp", Reason: strings.Repeat("\x01", 20<<10), Journal: strings.Repeat("\xff", 20<<10)}); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := s.Refused(); err != nil || RefusedOf(list, "11") == nil {
		t.Errorf("%d are refused, %v", len(list), err)
	}
}

// TestStateThatIsNone: what is no file of ours is an error with a remedy, whatever it
// is and however large.
func TestStateThatIsNone(t *testing.T) {
	s := State{t.TempDir()}
	path := filepath.Join(s.Dir, upgradeFile)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Upgrade(); err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Error(err)
	}
	os.Remove(path)
	put(t, path, nil)
	if _, err := s.Upgrade(); err == nil || !strings.Contains(err.Error(), "remove the file") {
		t.Error(err)
	}
	if err := os.Truncate(path, 1<<40); err != nil { // would not fit into memory
		t.Fatal(err)
	}
	if _, err := s.Upgrade(); err == nil || !strings.Contains(err.Error(), "remove the file") {
		t.Error(err)
	}
	if err := s.SetUpgrade(&Upgrade{Version: "1"}, time.Now()); err != nil {
		t.Error(err)
	}
}

// foldESP has names as a FAT has them: in either case they are one file.
type foldESP struct{ Folder }

func (f foldESP) Open(name string) (Volume, error) {
	files, err := f.List()
	if err != nil {
		return nil, err
	}
	for _, o := range files {
		if strings.EqualFold(o.Name, name) {
			name = o.Name
		}
	}
	return f.Folder.Open(name)
}

// TestRecountInCapitals: a UKI that somebody has put back from another system may have
// its name in capitals.
func TestRecountInCapitals(t *testing.T) {
	f := foldESP{Folder(t.TempDir())}
	program := append([]byte("MZ"), make([]byte, leastUKI)...)
	put(t, filepath.Join(string(f.Folder), "EDGE_1.2.0.EFI"), program)
	put(t, filepath.Join(string(f.Folder), "EDGE_1.2.0+3.EFI"), append(program, 1)) // of a try before
	w := &Writer{ESP: f}
	if err := w.Recount(t.Context(), UKI{Version: "1.2.0"}, UKI{Version: "1.2.0", Counted: true, Left: 3}); err != nil {
		t.Fatal(err)
	}
	files, err := f.List()
	if err != nil || len(files) != 1 || files[0].Name != "edge_1.2.0+3.efi" || files[0].Size != int64(len(program)) {
		t.Error(files, err)
	}
	if err := w.Recount(t.Context(), UKI{Version: "1.3.0"}, UKI{Version: "1.3.0", Counted: true}); err == nil || !strings.Contains(err.Error(), "not on the EFI partition") {
		t.Error(err)
	}
}
