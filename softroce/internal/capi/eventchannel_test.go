// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/cmevent"
)

// A channel without a descriptor wakes its reader for each event, also for
// events that move to it with an id.
func TestChannelWithoutDescriptor(t *testing.T) {
	from, to := newProgram(t), newProgram(t)
	to7 := sockaddr(netip.AddrPortFrom(loopbacks["IPv4"], 7))
	var woken atomic.Int32
	wake := func() bool {
		woken.Add(1)
		return true
	}
	taken := cmevent.Take(from.channel, wake)
	require.NotNil(t, taken)
	require.Equal(t, int32(noEventfd), from.channel.Fd)
	require.False(t, taken.Pending())
	require.Nil(t, taken.Next())

	id := from.id(tcp)
	require.NoError(t, librdmacm.ResolveAddr(id, nil, to7, 1000))
	isWoken := func() bool { return woken.Load() > 0 } // after the event is pending
	require.Eventually(t, isWoken, patience, time.Millisecond)
	require.True(t, taken.Pending())
	require.Equal(t, int32(1), woken.Load())
	e := taken.Next()
	require.Equal(t, librdmacm.RDMA_CM_EVENT_ADDR_RESOLVED, e.Event)
	require.Same(t, id, e.Id)
	require.False(t, taken.Pending())
	taken.Ack(e)

	require.NoError(t, librdmacm.ResolveRoute(id, 1000))
	require.Eventually(t, taken.Pending, patience, time.Millisecond)
	require.NoError(t, librdmacm.MigrateId(id, to.channel))
	require.False(t, taken.Pending(), "the event has moved")
	require.NoError(t, librdmacm.MigrateId(id, from.channel))
	require.True(t, taken.Pending(), "the event is back")
	require.Equal(t, int32(3), woken.Load())
	destroy(t, id)
	require.False(t, taken.Pending(), "the event is dropped")
	require.Nil(t, taken.Next())
}

func TestChannelOfNoDevice(t *testing.T) {
	self()
	require.Nil(t, cmevent.Take(new(librdmacm.EventChannel), func() bool { return false }))
}

// A call that waits for an event goes on waiting if its object is destroyed
// after the event has come and before the call takes it: C programs end such a
// thread with the process.
func TestDestroyedBeforeEventIsTaken(t *testing.T) {
	tests := map[string]func(t *testing.T, l *cmLibrary) (fd int32, wait func() error, destroy func()){
		"event channel": func(t *testing.T, l *cmLibrary) (int32, func() error, func()) {
			c, err := librdmacm.CreateEventChannel()
			require.NoError(t, err)
			wait := func() error {
				_, err := librdmacm.GetCmEvent(c)
				return err
			}
			return c.Fd, wait, func() { l.destroyEventChannel(l.eventChannels[c]) }
		},
		"context": func(t *testing.T, l *cmLibrary) (int32, func() error, func()) {
			list, _, err := libibverbs.GetDeviceList()
			require.NoError(t, err)
			defer libibverbs.FreeDeviceList(list)
			c, err := libibverbs.OpenDevice(*list)
			require.NoError(t, err)
			wait := func() error {
				var e libibverbs.AsyncEvent
				return libibverbs.GetAsyncEvent(c, &e)
			}
			return c.AsyncFd, wait, func() { l.closeContext(c) }
		},
	}
	for name, open := range tests {
		t.Run(name, func(t *testing.T) {
			l := self()
			fd, wait, destroy := open(t, l)
			returned := make(chan error, 1)
			go func() { returned <- wait() }()
			// With the mutex held, a call that waits already reads the semaphore.
			require.Eventually(t, func() bool {
				if counter(fd) != "0" {
					return false
				}
				l.Lock()
				defer l.Unlock()
				if _, err := syscall.Write(int(fd), one); err != nil {
					return false
				}
				for range 1000 {
					if counter(fd) == "0" {
						destroy()
						return true
					}
				}
				return false
			}, patience, time.Millisecond)
			select {
			case err := <-returned:
				require.Failf(t, "the call has returned", "%v", err)
			case <-time.After(100 * time.Millisecond):
			}
		})
	}
}

// counter returns the number that a reader of an eventfd finds, or "" if that
// is not known.
func counter(fd int32) string {
	info, _ := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	_, after, _ := strings.Cut(string(info), "eventfd-count:")
	number, _, _ := strings.Cut(strings.TrimSpace(after), "\n")
	return number
}
