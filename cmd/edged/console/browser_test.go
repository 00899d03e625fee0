package console

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// browser is a real headless Chromium, driven over the DevTools protocol on a
// pair of pipes (file descriptors 3 and 4, messages ended by a zero byte).
type browser struct {
	t       *testing.T
	to      io.Writer
	from    *bufio.Reader
	id      int
	session string
}

// openBrowser starts Chromium with a profile of its own and ends its whole
// process group with the test.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	profile := t.TempDir()
	cmd := exec.Command("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--no-proxy-server",
		"--user-data-dir="+profile, "--remote-debugging-pipe", "about:blank")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Env = append(os.Environ(), "HOME="+profile, "TMPDIR="+profile)
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start chromium (apt package chromium): %v", err)
	}
	theirIn.Close()
	theirOut.Close()
	t.Cleanup(func() {
		ourOut.Close()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // the group that was made above
		_ = cmd.Wait()                                      // "signal: killed"
		ourIn.Close()
	})
	if err := ourIn.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	b := &browser{t: t, to: ourOut, from: bufio.NewReader(ourIn)}
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	b.session = session.SessionID
	b.call("Runtime.enable", nil, nil)
	b.call("Log.enable", nil, nil)
	return b
}

// call sends a command and waits for its answer. What the page reports by
// itself as an error (an exception, a violated policy) fails the test.
func (b *browser) call(method string, params map[string]any, out any) {
	b.t.Helper()
	b.id++
	msg, err := json.Marshal(map[string]any{"id": b.id, "method": method, "params": params, "sessionId": b.session})
	if b.session == "" {
		msg, err = json.Marshal(map[string]any{"id": b.id, "method": method, "params": params})
	}
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.to.Write(append(msg, 0)); err != nil {
		b.t.Fatalf("talk to chromium: %v", err)
	}
	for {
		raw, err := b.from.ReadBytes(0)
		if err != nil {
			b.t.Fatalf("chromium, %s: %v", method, err)
		}
		var answer struct {
			ID     int
			Method string
			Params struct {
				Entry            struct{ Level, Text string }
				ExceptionDetails struct {
					Text      string
					Exception struct{ Description string }
				}
			}
			Error  *struct{ Message string }
			Result json.RawMessage
		}
		if err := json.Unmarshal(raw[:len(raw)-1], &answer); err != nil {
			b.t.Fatalf("chromium said %q: %v", raw, err)
		}
		switch {
		case answer.Method == "Runtime.exceptionThrown":
			b.t.Errorf("the page threw: %s", answer.Params.ExceptionDetails.Exception.Description)
		case answer.Method == "Log.entryAdded" && answer.Params.Entry.Level == "error":
			b.t.Logf("the browser's log: %s", answer.Params.Entry.Text)
		case answer.ID != b.id:
		case answer.Error != nil:
			b.t.Fatalf("chromium, %s: %s", method, answer.Error.Message)
		default:
			if out != nil {
				if err := json.Unmarshal(answer.Result, out); err != nil {
					b.t.Fatal(err)
				}
			}
			return
		}
	}
}

func (b *browser) open(url string) {
	b.t.Helper()
	b.call("Page.navigate", map[string]any{"url": url}, nil)
}

// eval returns the value of a JavaScript expression as text.
func (b *browser) eval(js string) string {
	b.t.Helper()
	var out struct {
		Result           struct{ Value any }
		ExceptionDetails *struct{ Text string }
	}
	b.call("Runtime.evaluate", map[string]any{"expression": js, "returnByValue": true, "awaitPromise": true}, &out)
	if out.ExceptionDetails != nil {
		b.t.Fatalf("evaluate %s: %s", js, out.ExceptionDetails.Text)
	}
	return fmt.Sprint(out.Result.Value)
}

// wait polls a JavaScript condition until it holds.
func (b *browser) wait(js string) {
	b.t.Helper()
	for end := time.Now().Add(time.Minute); b.eval("Boolean("+js+")") != "true"; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("never true in the page: %s\n%s", js, b.eval("document.body.innerText"))
		}
	}
}

// text returns what a person sees of the element.
func (b *browser) text(selector string) string {
	b.t.Helper()
	return b.eval(fmt.Sprintf("document.querySelector(%q)?.innerText ?? '(no such element)'", selector))
}

// view sets the window and the colour scheme: "light" or "dark".
func (b *browser) view(width, height int, scheme string) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// shoot writes a picture of the whole page to the folder that -shots names, for
// a person to look at.
func (b *browser) shoot(name string) {
	b.t.Helper()
	if *shots == "" {
		return
	}
	var out struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true}, &out)
	png, err := base64.StdEncoding.DecodeString(out.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*shots, name+".png"), png, 0o600); err != nil {
		b.t.Fatal(err)
	}
}
