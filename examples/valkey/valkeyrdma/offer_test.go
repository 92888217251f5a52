// SPDX-License-Identifier: Apache-2.0

package valkeyrdma_test

import (
	"context"
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
