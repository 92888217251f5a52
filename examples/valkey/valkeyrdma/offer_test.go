// SPDX-License-Identifier: Apache-2.0

package valkeyrdma_test

import (
	"context"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/examples/valkey/valkeyrdma"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/softroce"
)

// A Read whose deadline passes while acknowledgements of offers are lost leaves
// the next offer to a later Read.
func TestReadDeadlineInOffer(t *testing.T) {
	if cmtest.NeedDevice(t); !testdevice.Soft() {
		t.Skip("needs the device in user space")
	}
	const window = 4096
	var server atomic.Uint32 // the number of its queue pair
	defer softroce.SetFaults(nil)
	softroce.SetFaults(func(p softroce.Packet) softroce.Fault {
		return softroce.Fault{Drop: p.Kind == softroce.KindAck && p.DestQP != server.Load()}
	})
	address, served := serveFake(t, func(f *fake) error {
		server.Store(f.QP().Num())
		if err := f.greet(f.window()); err != nil {
			return err
		}
		for range 4 {
			for f.written == window { // until the next offer
				m, err := f.messages.Next(context.Background())
				if err != nil {
					return err
				}
				f.takeOffer(m)
			}
			if err := f.write(window); err != nil {
				return err
			}
		}
		return f.waitForEnd()
	})
	d := valkeyrdma.Dialer{Window: window}
	dialed, err := d.Dial(cmtest.Bounded(t), "rdma", address)
	require.NoError(t, err)
	c := dialed.(*valkeyrdma.Conn)
	cmtest.Soon(t, "both windows are full", func() bool { return valkeyrdma.Arrived(c) == 2*window })
	b := make([]byte, 2*window)
	for n := 0; n < len(b) || err == nil; {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
		var more int
		more, err = c.Read(b)
		if n += more; err != nil {
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		}
	}
	softroce.SetFaults(nil)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(cmtest.Patience)))
	_, err = io.ReadFull(c, b)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, cmtest.Take(t, served, "the server's end"))
}

// A server that writes before it has the offer does not bring about the next
// one: it could overtake that offer.
func TestWriteBeforeOffer(t *testing.T) {
	const window = 4096
	early := make(chan struct{})
	address, served := serveFake(t, func(f *fake) error {
		if err := errors.Join(f.greet(f.window()), f.write(window)); err != nil {
			return err
		}
		for f.written == window {
			m, err := f.messages.Next(context.Background())
			if err != nil {
				return err
			}
			f.takeOffer(m)
		}
		if err := f.write(window); err != nil {
			return err
		}
		<-early
		return errors.Join(f.claim(window), f.claim(1), f.waitForEnd())
	})
	d := valkeyrdma.Dialer{Window: window}
	dialed, err := d.Dial(cmtest.Bounded(t), "rdma", address)
	require.NoError(t, err)
	c := dialed.(*valkeyrdma.Conn)
	cmtest.Soon(t, "both windows are full", func() bool { return valkeyrdma.Arrived(c) == 2*window })
	release := valkeyrdma.HoldPosts(c)
	read := cmtest.InBackground(func() error {
		_, err := io.ReadFull(c, make([]byte, 2*window))
		return err
	})
	cmtest.Soon(t, "the next window is about to be offered", func() bool { return valkeyrdma.Offered(c) == 3*window })
	close(early)
	cmtest.Take(t, c.Gone(), "the end of the connection")
	release()
	require.NoError(t, cmtest.Take(t, read, "Read"))
	require.Equal(t, uint64(3*window), valkeyrdma.Offered(c))
	_, err = c.Write([]byte{1})
	require.ErrorContains(t, err, "has written 1 bytes where there was room for 0")
	require.NoError(t, c.Close())
	require.NoError(t, cmtest.Take(t, served, "the server's end"))
}
