package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/catchment-dev/edge/test/lab"
)

// Running is a command of the operator under way. What it writes is in a file: it can
// be read meanwhile, and no process that outlives the command holds up anybody.
type Running struct {
	*lab.Process
	args  []string
	log   string
	begun time.Time
}

// Begin starts a command in the folder of the fleet. Its log is log-* in the home.
func (o *Operator) Begin(args ...string) (*Running, error) {
	log, err := os.CreateTemp(o.Home, "log-")
	if err != nil {
		return nil, fmt.Errorf("make log of %s: %w", args[0], err)
	}
	defer log.Close()
	cmd := o.command(args...)
	cmd.Stdout, cmd.Stderr = log, log
	p, err := o.Start(cmd)
	if err != nil {
		return nil, err
	}
	return &Running{Process: p, args: args, log: log.Name(), begun: time.Now()}, nil
}

// Command runs a command to its end and returns all that it wrote.
func (o *Operator) Command(ctx context.Context, args ...string) (string, error) {
	r, err := o.Begin(args...)
	if err != nil {
		return "", err
	}
	err = r.Wait(ctx)
	return r.Text(), err
}

// Wait waits for the end; when ctx ends the command is killed.
func (r *Running) Wait(ctx context.Context) error {
	select {
	case <-r.Done():
	case <-ctx.Done():
		r.KillAll()
		return fmt.Errorf("%v: %w\n%s", r.args, context.Cause(ctx), r.Text())
	}
	if r.Err() != nil {
		return fmt.Errorf("%v: %w\n%s", r.args, r.Err(), r.Text())
	}
	return nil
}

// Meanwhile ends with the command: what is waited for does not come any more.
func (r *Running) Meanwhile(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-r.Done():
			end(fmt.Errorf("the command has ended\n%s", r.Text()))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { end(nil) }
}

// KillAll is kill -9 of the command and of the processes that it has forked, as when a
// terminal or a machine is gone. The connections of ssh that it leaves behind stay.
func (r *Running) KillAll() {
	_ = syscall.Kill(-r.PID(), syscall.SIGKILL) // it leads a group of its own
	<-r.Done()
}

// Text is what it has written so far.
func (r *Running) Text() string {
	b, err := os.ReadFile(r.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Vars are extra variables of a playbook.
type Vars map[string]any

// BeginPlay starts a playbook of the collection, such as site or rollout.
func (o *Operator) BeginPlay(playbook string, extra Vars, args ...string) (*Running, error) {
	all := []string{"ansible-playbook", "catchment.edge." + playbook}
	if len(extra) > 0 {
		b, err := json.Marshal(extra)
		if err != nil {
			return nil, fmt.Errorf("write variables of %s: %w", playbook, err)
		}
		all = append(all, "-e", string(b))
	}
	return o.Begin(append(all, args...)...)
}

// Play runs a playbook to its end; see Result.
func (o *Operator) Play(ctx context.Context, playbook string, extra Vars, args ...string) (Result, error) {
	r, err := o.BeginPlay(playbook, extra, args...)
	if err != nil {
		return Result{}, err
	}
	return r.Result(ctx)
}

// Result waits for the end of a playbook. An error says that it could not be run; that it
// has failed is the result's to say, and one that fails before it begins has no hosts.
func (r *Running) Result(ctx context.Context) (Result, error) {
	waitErr := r.Wait(ctx)
	if ctx.Err() != nil {
		return Result{}, waitErr
	}
	got, err := parseResult(r.Text())
	if err != nil && waitErr == nil {
		return Result{}, fmt.Errorf("%w\n%s", err, r.Text())
	}
	got.Took, got.Failed = time.Since(r.begun), waitErr != nil
	return got, nil
}
