package ansible

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// What the playbook rotate_keys is to do, one after the other.

func (f *keyFleet) checkMode(ctx context.Context) error {
	gossip, _ := f.operator("gossip")
	ticket, _ := f.operator("ticket")
	out, err := f.rotate(ctx, "--check")
	if err != nil || !strings.Contains(out, "changed=2") {
		return fmt.Errorf("check mode: %w\n%s", err, out)
	}
	for _, bad := range []string{"edge_keys_rotate=gosip", "rotate_gossip_keep=-1"} {
		if out, err := f.rotate(ctx, "-e", bad); err == nil || !strings.Contains(out, ": expected ") {
			return fmt.Errorf("%s: %w\n%s", bad, err, out)
		}
	}
	after, midway := f.operator("gossip")
	if midway || !slices.Equal(after, gossip) {
		return fmt.Errorf("check mode has changed the file to %q", after)
	}
	return f.uses(ctx, "b1", gossip, ticket)
}

func (f *keyFleet) changesAll(ctx context.Context) error {
	gossip, _ := f.operator("gossip")
	ticket, _ := f.operator("ticket")
	if out, err := f.rotate(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	now, _ := f.operator("gossip")
	tickets, _ := f.operator("ticket")
	if now[0] == gossip[0] || tickets[0] == ticket[0] || tickets[1] != ticket[0] {
		return fmt.Errorf("gossip %q -> %q, tickets %q -> %q", gossip, now, ticket, tickets)
	}
	return f.atRest(ctx, "a1", "b1", "c1")
}

// boxDown: c1 gossips, and ansible does not reach it.
func (f *keyFleet) boxDown(ctx context.Context) error {
	before, _ := f.operator("gossip")
	if err := f.describe("c1"); err != nil {
		return err
	}
	for range 2 { // the second run is at the same place
		out, err := f.rotate(ctx)
		if err == nil || !strings.Contains(out, "the step use of the gossip keys does not begin") || !strings.Contains(out, "c1: it was not reached") || !strings.Contains(out, "rotate_leave_out=c1") {
			return fmt.Errorf("with c1 down: %w\n%s", err, out)
		}
		now, midway := f.operator("gossip")
		if !midway || len(now) != 2 || now[0] != before[0] {
			return fmt.Errorf("the operator's file: %q, midway %v", now, midway)
		}
		if err := errors.Join(f.uses(ctx, "a1", now, nil), f.uses(ctx, "b1", now, nil), f.uses(ctx, "c1", before, nil)); err != nil {
			return err
		}
	}
	midway, _ := f.operator("gossip")
	if err := f.describe(); err != nil {
		return err
	}
	if out, err := f.rotate(ctx, "-e", "edge_keys_rotate=gossip"); err != nil {
		return fmt.Errorf("with c1 back: %w\n%s", err, out)
	}
	if now, _ := f.operator("gossip"); now[0] != midway[1] {
		return fmt.Errorf("another key is in use, %q, than was installed, %q", now, midway)
	}
	return f.atRest(ctx, "a1", "b1", "c1")
}

func (f *keyFleet) killed(ctx context.Context) error {
	for _, at := range []string{" is installed", " is in use"} {
		run, kill := context.WithCancelCause(ctx)
		ended := make(chan error, 1)
		go func() {
			_, err := f.playbook(run, f.Lab.Boxes["a1"].Host, "rotate_keys", "-e", "edge_keys_rotate=gossip")
			ended <- err
		}()
		reached := f.await(ctx, "the file to say that the key"+at, func() bool {
			content, _ := os.ReadFile(f.source("gossip"))
			return bytes.Contains(content, []byte(at+"\n"))
		})
		kill(errors.New("killed by the test"))
		if err := errors.Join(reached, errOf(<-ended == nil, "the run has ended well before it was killed")); err != nil {
			return err
		}
		midway, _ := f.operator("gossip")
		if out, err := f.rotate(ctx, "-e", "edge_keys_rotate=gossip"); err != nil {
			return fmt.Errorf("after a kill: %w\n%s", err, out)
		}
		if now, _ := f.operator("gossip"); !slices.Contains(midway, now[0]) {
			return fmt.Errorf("a third key is in use: %q, before %q", now, midway)
		}
		if err := f.atRest(ctx, "a1", "b1", "c1"); err != nil {
			return err
		}
	}
	return nil
}

func (f *keyFleet) given(ctx context.Context) error {
	password, given := filepath.Join(f.dir, "password"), filepath.Join(f.dir, "given.key")
	key := newKey()
	names, _ := f.keysOf([]byte(key))
	if err := errors.Join(os.WriteFile(password, []byte("test\n"), 0o600), os.WriteFile(given, []byte(key), 0o600)); err != nil {
		return err
	}
	vault := func(args ...string) error {
		cmd := exec.CommandContext(ctx, "ansible-vault", append(args, "--vault-password-file", password)...)
		cmd.Env = f.env
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("ansible-vault: %w: %s", err, out)
		}
		return nil
	}
	if err := vault("encrypt", f.source("gossip"), given); err != nil {
		return err
	}
	args := []string{"-e", "edge_keys_rotate=gossip", "-e", "rotate_gossip_new=" + given}
	if out, err := f.rotate(ctx, args...); err == nil || !strings.Contains(out, "decrypt "+f.source("gossip")) {
		return fmt.Errorf("without a password: %w\n%s", err, out)
	}
	args = append(args, "--vault-password-file", password)
	for turn := range 2 {
		out, err := f.rotate(ctx, args...)
		if err != nil || (turn > 0) != strings.Contains(out, "changed=0") {
			return fmt.Errorf("run %d with a given key: %w\n%s", turn, err, out)
		}
	}
	content, err := os.ReadFile(f.source("gossip"))
	if err != nil || !bytes.HasPrefix(content, []byte("$ANSIBLE_VAULT;")) {
		return fmt.Errorf("the file of the operator is not encrypted any more: %w", err)
	}
	if err := errors.Join(vault("decrypt", f.source("gossip")), f.uses(ctx, "c1", names, nil)); err != nil {
		return err
	}
	return f.atRest(ctx, "a1", "b1", "c1")
}

func (f *keyFleet) leavesOut(ctx context.Context) error {
	before, _ := f.operator("gossip")
	if err := f.describe("c1"); err != nil {
		return err
	}
	out, err := f.playbook(ctx, f.Lab.Boxes["a1"].Host, "rotate_keys", "-e", "rotate_leave_out=c1", "-e", "edge_keys_rotate=gossip")
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	if err := errors.Join(f.atRest(ctx, "a1", "b1"), f.uses(ctx, "c1", before, nil), f.describe()); err != nil {
		return err
	}
	out, err = f.playbook(ctx, f.Lab.Boxes["a1"].Host, "rotate_keys", "-e", "edge_keys_rotate=gossip")
	if err == nil || !strings.Contains(out, "c1: it encrypts with "+before[0]) || !strings.Contains(out, "the playbook site with --limit brings it back") {
		return fmt.Errorf("with the box back: %w\n%s", err, out)
	}
	// As site does: it writes what the operator has.
	content, err := os.ReadFile(f.source("gossip"))
	if err := errors.Join(err, os.WriteFile(f.boxFile("c1", "gossip"), content, 0o600)); err != nil {
		return err
	}
	if out, err := f.Lab.Boxes["c1"].Ctl(ctx, "reload"); err != nil {
		return fmt.Errorf("reload: %w: %s", err, out)
	}
	return errors.Join(f.atRest(ctx, "a1", "b1", "c1"), f.allHear(ctx))
}

func (f *keyFleet) oldFile(ctx context.Context) error {
	content, err := os.ReadFile(f.source("gossip"))
	if err != nil {
		return err
	}
	names, _ := f.keysOf(content)
	other, last := newKey(), newKey()
	short, _ := f.keysOf([]byte(other + last))
	for _, file := range []string{
		newKey(),
		// One of the middle of a change that has been finished since.
		"# rotation: " + short[0] + " is in use\n" + other + last,
		"# rotation: " + short[1] + " is installed\n" + other + last,
	} {
		if err := os.WriteFile(f.source("gossip"), []byte(file), 0o600); err != nil {
			return err
		}
		out, err := f.rotate(ctx, "-e", "edge_keys_rotate=gossip")
		if err == nil || !strings.Contains(out, "a1: it encrypts with "+names[0]) || !strings.Contains(out, "put the last one back") {
			return fmt.Errorf("with an old file: %w\n%s", err, out)
		}
		if err := errors.Join(f.uses(ctx, "a1", names, nil), f.allHear(ctx)); err != nil {
			return err
		}
	}
	return nil
}
