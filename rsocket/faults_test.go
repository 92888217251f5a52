// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rsocket"
)

// needFaults skips a test on a device to which nothing can be done.
func needFaults(t *testing.T) {
	t.Helper()
	if needDevice(t); !testdevice.Soft() {
		t.Skip("needs the device in user space")
	}
}

// pools are what connections share or do not.
var pools = map[string]func() *rsocket.Pool{
	"alone": func() *rsocket.Pool { return nil },
	"pool":  func() *rsocket.Pool { return new(rsocket.Pool) },
}

// When the peer does not answer any more, calls end with ETIMEDOUT: those that
// wait, by KeepAlive, and those that write.
func TestPeerVanishes(t *testing.T) {
	for name, pool := range pools {
		t.Run(name, func(t *testing.T) {
			needFaults(t)
			config := rsocket.Config{KeepAlive: 20 * time.Millisecond, AckTimeout: 50 * time.Millisecond, Pool: pool()}
			ln := listen(t, config)
			waits, _ := pairOn(t, ln, config)
			writes, _ := pairOn(t, ln, rsocket.Config{KeepAlive: -1, AckTimeout: config.AckTimeout, Pool: config.Pool})
			both, _ := pairOn(t, ln, config)
			switchedOn, _ := pairOn(t, ln, rsocket.Config{KeepAlive: -1, AckTimeout: config.AckTimeout, Pool: config.Pool})
			require.NoError(t, switchedOn.SetKeepAlivePeriod(10*time.Millisecond)) // not yet
			require.NoError(t, switchedOn.SetKeepAlive(true))
			switchedOff, peer := pairOn(t, ln, config)
			require.NoError(t, switchedOff.SetKeepAlive(false))
			for _, way := range [][2]*rsocket.Conn{{switchedOff, peer}, {peer, switchedOff}} { // the answer comes after all acknowledgements
				_, err := way[0].Write([]byte{1})
				require.NoError(t, err)
				_, err = way[1].Read(make([]byte, 1))
				require.NoError(t, err)
			}
			cmtest.Soon(t, "no check is under way", func() bool { return switchedOff.Buffered() == 0 && rsocket.Idle(switchedOff) })
			calls := map[string]func() error{
				"read": func() error { _, err := waits.Read(make([]byte, 1)); return err },
				"peek": func() error { _, err := both.Peek(1); return err },
				"on":   func() error { _, err := switchedOn.Read(make([]byte, 1)); return err },
				"copy": func() error { _, err := both.ReadFrom(neverEnding{}); return err },
			}
			off := inBackground(func() error { _, err := switchedOff.Read(make([]byte, 1)); return err })
			ended := map[string]<-chan error{}
			for name, call := range calls {
				ended[name] = inBackground(call)
			}
			defer testdevice.LosePackets(t)()
			// Not before: if all that the peer has room for had arrived,
			// nothing would be under way that could be lost.
			ended["write"] = inBackground(func() error {
				for {
					if _, err := writes.Write(make([]byte, 1000)); err != nil {
						return err
					}
				}
			})
			start := time.Now()
			for name, err := range ended {
				err := <-err
				require.ErrorIs(t, err, syscall.ETIMEDOUT, name)
				require.True(t, err.(net.Error).Timeout(), name)
			}
			t.Logf("all calls ended within %v: %v", time.Since(start), <-inBackground(calls["read"]))
			require.Empty(t, off, "without checks, a Read that waits notices nothing")
			require.NoError(t, switchedOff.Close())
			require.ErrorIs(t, <-off, net.ErrClosed)
		})
	}
}

// When the device is removed, calls end with ENODEV, and Close frees
// everything.
func TestDeviceIsRemoved(t *testing.T) {
	for name, pool := range pools {
		t.Run(name, func(t *testing.T) {
			needFaults(t)
			testdevice.Require(t).Have(t, testdevice.LatePosts)
			t.Cleanup(func() { // then librdmacm lets go of the removed device
				_, err := rdmacm.Devices()
				require.NoError(t, err)
			})
			config := rsocket.Config{Pool: pool()}
			ln := listen(t, config)
			var calls sync.WaitGroup
			errs := make(chan error, 100)
			for range 5 {
				a, b := pairOn(t, ln, config)
				calls.Go(func() { _, err := a.Read(make([]byte, 1)); errs <- err })
				calls.Go(func() { _, err := io.Copy(io.Discard, b); errs <- err })
				begun := make(chan struct{})
				calls.Go(func() {
					_, err := a.ReadFrom(io.MultiReader(&net.Buffers{{1}}, reader(func(b []byte) (int, error) {
						select {
						case begun <- struct{}{}:
						default:
						}
						return len(b), nil
					})))
					errs <- err
				})
				<-begun
			}
			calls.Go(func() {
				_ = ln.SetDeadline(time.Time{})
				_, err := ln.Accept()
				errs <- err
			})
			testdevice.Replace(t, calls.Wait)
			close(errs)
			for err := range errs {
				require.ErrorIs(t, err, syscall.ENODEV)
				_, ok := errors.AsType[*net.OpError](err)
				require.True(t, ok, "%v", err)
			}
		})
	}
}
