// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// What catches up with the events returns after the handlers have had them.
func TestCatchUp(t *testing.T) {
	device := testdevice.Require(t)
	d, first, err := newDispatchedID(PortSpaceTCP, ownDispatcher)
	require.NoError(t, err)
	second, err := d.channel.NewID(PortSpaceTCP)
	require.NoError(t, err)
	d.catchUp(nil) // there are no events
	begun, resume := make(chan struct{}), make(chan struct{})
	d.handle(first, func(*Event) {
		close(begun)
		<-resume // other events wait to be read
	})
	var had atomic.Bool
	d.handle(second, func(*Event) { had.Store(true) })
	to := netip.AddrPortFrom(device.IPv4, 7)
	require.NoError(t, first.ResolveAddr(netip.AddrPort{}, to, time.Minute))
	<-begun
	require.NoError(t, second.ResolveAddr(netip.AddrPort{}, to, time.Minute))
	for end := time.Now().Add(time.Minute); !Readable(d.channel); runtime.Gosched() {
		require.True(t, time.Now().Before(end), "no event comes")
	}
	over := make(chan struct{})
	close(over)
	d.catchUp(over) // does not wait
	caught := make(chan struct{})
	go func() {
		defer close(caught)
		d.catchUp(nil)
		assert.True(t, had.Load(), "an event is unread")
	}()
	waits := func() bool {
		d.channel.mu.Lock()
		defer d.channel.mu.Unlock()
		return len(d.channel.drains) == 2 // with the one that did not wait
	}
	for end := time.Now().Add(time.Minute); !waits(); runtime.Gosched() {
		require.True(t, time.Now().Before(end), "it does not wait for the events")
	}
	close(resume)
	<-caught
	require.NoError(t, first.Close())
	require.NoError(t, second.Close())
	require.NoError(t, d.release())
	d.catchUp(nil) // the dispatcher has ended
}
