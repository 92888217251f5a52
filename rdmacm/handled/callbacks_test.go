// SPDX-License-Identifier: Apache-2.0

package handled_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/handled"
)

// TestMain lets a test run this program again.
func TestMain(m *testing.M) {
	process.Become(map[string]process.Program{"caller": func(args []string, _, stderr io.Writer) int {
		if err := callFromHandler(args[0]); err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
		return 0
	}})
	os.Exit(m.Run())
}

// The handler of the only ID of a process calls every method of its ID, and
// opens and closes others.
func TestHandlerCallsEverything(t *testing.T) {
	d := cmtest.NeedDevice(t)
	ctx, cancel := context.WithCancel(cmtest.Bounded(t))
	ln, err := rdmacm.Listen(ctx, netip.AddrPortFrom(d.IPv4, 0).String(), nil)
	require.NoError(t, err)
	served := cmtest.InBackground(func() error {
		return ln.Serve(ctx, func(ctx context.Context, req *rdmacm.Request) {
			if conn, err := req.Accept(ctx, nil); err == nil {
				_ = conn.Wait(ctx)
				_ = conn.Close()
			}
		})
	})
	require.Zero(t, process.Run(t, process.Command(t, "caller", ln.Addr().String())).Wait())
	cancel()
	require.NoError(t, <-served)
	require.NoError(t, ln.Close())
}

var errDone = errors.New("done")

func callFromHandler(peer string) error {
	ctx, cancel := context.WithTimeout(context.Background(), cmtest.Patience/2)
	defer cancel()
	to, err := netip.ParseAddrPort(peer)
	if err != nil {
		return err
	}
	id, err := handled.New(rdmacm.PortSpaceTCP, func(id *handled.ID, _ *rdmacm.Event) error {
		return errors.Join(errDone, everything(ctx, id, to))
	})
	if err != nil {
		return err
	}
	if err := id.ID().ResolveAddr(netip.AddrPort{}, to, time.Second); err != nil {
		return err
	}
	select {
	case <-id.Done():
	case <-ctx.Done():
		stacks := make([]byte, 1<<20)
		return fmt.Errorf("the handler does not return:\n%s", stacks[:runtime.Stack(stacks, true)])
	}
	if err := id.Err(); err.Error() != errDone.Error() {
		return err
	}
	if open := ibverbs.OpenObjects(); len(open) > 0 {
		return fmt.Errorf("not closed: %v", open)
	}
	return nil
}

// everything calls what a handler may call.
func everything(ctx context.Context, id *handled.ID, peer netip.AddrPort) error {
	brief, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	var failed error
	calls := map[string]func(){
		"Close": func() {
			if err := id.Close(); !errors.Is(err, syscall.EBUSY) {
				failed = fmt.Errorf("Close: %w", err)
			}
		},
		"CreateQP": func() { _, _ = id.CreateQP(nil, ibverbs.QPConfig{}) },
		"Done":     func() { _ = id.Done() },
		"Err":      func() { _ = id.Err() },
		"ID":       func() { _ = id.ID().LocalAddr() },
		"Listen":   func() { _ = id.Listen(1) },
		"SetHandler": func() {
			_ = id.SetHandler(func(*handled.ID, *rdmacm.Event) error { return nil })
		},
		"Shutdown": func() {
			if err := id.Shutdown(brief); !errors.Is(err, context.DeadlineExceeded) {
				failed = fmt.Errorf("Shutdown: %w", err)
			}
		},
	}
	for method := range reflect.TypeFor[*handled.ID]().Methods() {
		f := calls[method.Name]
		if f == nil {
			return fmt.Errorf("the test does not know ID.%s", method.Name)
		}
		if f(); failed != nil {
			return failed
		}
	}
	conn, err := rdmacm.Dial(ctx, peer.String(), nil)
	if err != nil {
		return err
	}
	if err := conn.Shutdown(ctx); err != nil {
		return err
	}
	other, err := handled.New(rdmacm.PortSpaceTCP, func(*handled.ID, *rdmacm.Event) error { return errDone })
	if err != nil {
		return err
	}
	if err := other.ID().ResolveAddr(netip.AddrPort{}, peer, time.Second); err != nil {
		return err
	}
	select {
	case <-other.Done():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
