package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startNginx runs nginx as an origin on an address of its own.
func startNginx(t *testing.T) netip.AddrPort {
	t.Helper()
	dir, err := os.MkdirTemp("", "nginx")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	os.Chmod(dir, 0o755) // the workers are not root
	at := netip.AddrPortFrom(loopback(), 8080)
	if err := os.WriteFile(filepath.Join(dir, "big"), []byte(strings.Repeat("0123456789abcde\n", 1<<16)), 0o644); err != nil {
		t.Fatal(err)
	}
	conf := fmt.Sprintf(`
daemon off; master_process off; pid %[1]s/pid; error_log %[1]s/error.log;
events { worker_connections 512; }
http {
  access_log off; keepalive_requests 100000; client_body_temp_path %[1]s/body; client_max_body_size 100m;
  proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  server {
    listen %[2]s;
    root %[1]s;
    location /echo { add_header X-Method $request_method always; add_header X-Length "$http_content_length" always;
      return 200 "host=$http_host xff=$http_x_forwarded_for proto=$http_x_forwarded_proto xfh=$http_x_forwarded_host id=$http_x_request_id real=$http_x_real_ip conn=$http_connection args=$args\n"; }
    location /empty { return 204; }
    location /moved { return 301 /elsewhere; }
    location /slow { limit_rate 2m; alias %[1]s/big; }
    location /upload { dav_methods PUT; alias %[1]s/; }
  }
}`, dir, at)
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("nginx", "-c", file, "-p", dir)
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGQUIT)
		kill := time.AfterFunc(3*time.Second, func() { cmd.Process.Kill() })
		cmd.Wait()
		kill.Stop()
	})
	waitFor(t, "nginx", func() bool {
		c, err := net.Dial("tcp", at.String())
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return at
}

// TestCurlAndNginx has programs that are not ours at both ends.
func TestCurlAndNginx(t *testing.T) {
	b := newBench(t, startNginx(t))
	clients := map[string][]string{
		"h2 tls1.3":   {"--http2", "--tlsv1.3"},
		"h2 tls1.2":   {"--http2", "--tlsv1.2", "--tls-max", "1.2"},
		"h1.1 tls1.3": {"--http1.1", "--tlsv1.3"},
		"h1.1 tls1.2": {"--http1.1", "--tlsv1.2", "--tls-max", "1.2"},
		"h1.0 tls1.3": {"--http1.0"},
	}
	for name, args := range clients {
		t.Run(name, func(t *testing.T) {
			client := *b
			client.t = t
			client.checkNginx(args)
		})
	}
	t.Run("plain", func(t *testing.T) {
		out, code := b.curl("http://www.example.net/echo")
		if code != 0 || !strings.Contains(out, "proto=http ") {
			t.Errorf("exit %d: %s", code, out)
		}
	})
	t.Run("too old", func(t *testing.T) {
		if out, code := b.curl("https://www.example.net/echo", "--tlsv1.1", "--tls-max", "1.1", "--ciphers", "DEFAULT@SECLEVEL=0"); code != 35 {
			t.Errorf("TLS 1.1: exit %d: %s", code, out)
		}
	})
}

func (b *bench) checkNginx(args []string) {
	ask := func(path, want string, wantCode int, more ...string) {
		b.t.Helper()
		out, code := b.curl("https://www.example.net"+path, append(more, args...)...)
		if code != wantCode || !strings.Contains(out, want) {
			b.t.Errorf("%s: exit %d, %d bytes: %.300q; want %d and %q", path, code, len(out), out, wantCode, want)
		}
	}
	ask("/echo?a=%zz;b&c", "args=a=%zz;b&c\n", 0)
	ask("/echo", "proto=https xfh=www.example.net id=", 0, "-H", "X-Forwarded-Proto: gopher", "-H", "X_Request_Id: forged")
	ask("/echo", "host=www.example.net xff=127.0.0.1 ", 0, "-H", "X-Forwarded-For: 1.2.3.4", "--interface", "127.0.0.1")
	ask("/echo", "real= conn= ", 0, "-H", "X-Real-IP: 1.2.3.4", "-H", "X.Real.IP: 1.2.3.4")
	ask("/empty", "204 0", 0, "-w", "%{http_code} %{size_download}")
	ask("/empty", "204 0", 0, "-w", "%{http_code} %{size_download}", "-X", "DELETE")
	ask("/moved", "301 http://www.example.net:8080/elsewhere", 0, "-o", "/dev/null", "-w", "%{http_code} %{redirect_url}")
	ask("/big", "200 1048576", 0, "-o", "/dev/null", "-w", "%{http_code} %{size_download}")
	ask("/big", "ontent-", 0, "-I")
	ask("/big", "206 100", 0, "-o", "/dev/null", "-r", "100-199", "-w", "%{http_code} %{size_download}")
	ask("/big", "304 0", 0, "-o", "/dev/null", "-H", "If-None-Match: *", "-w", "%{http_code} %{size_download}")
	ask("/missing", "404", 0, "-o", "/dev/null", "-w", "%{http_code}")
	ask("/upload/up", "20", 0, "-T", b.dir+"/www.example.net.crt", "-o", "/dev/null", "-w", "%{http_code}")
	ask("/upload/up", "-----BEGIN CERTIFICATE-----", 0)
	ask("/echo", "POST", 0, "-d", strings.Repeat("x", 100), "-D", "-")
	ask("/echo", "ength: 100000", 0, "-d", strings.Repeat("x", 100000), "-D", "-", "-o", "/dev/stdout")
}
