// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package face

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/librdmacm"
	manager "github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/link"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// A process that is stopped, and whose ring is full, holds up one call that
// sends to it, and no calls that send to others.
func TestStoppedNeighbour(t *testing.T) {
	n := self()
	require.NotNil(t, n.link)
	slotOf := func(at netip.AddrPort) int {
		slot, err := n.link.Find(claimName(tcp, at.Addr(), at.Port()))
		require.NoError(t, err)
		return slot
	}
	process, at := startNeighbour(t, loopbacks["IPv4"])
	_, liveAt := startNeighbour(t, loopbacks["IPv4"])
	stopped, live := slotOf(at), slotOf(liveAt)
	require.NoError(t, process.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	_, err := syscall.Wait4(process.Process.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped())

	// owes sends a message in a call of the program's, and returns what the
	// call waits for.
	owes := func(slot int) []debt {
		n.lock()
		defer n.unlock()
		n.sendMADTo(slot, manager.MAD{Src: at.Addr(), Dst: at.Addr()})
		return n.debts()
	}
	for n.link.Idle() {
		n.lock()
		n.link.Send(stopped, link.MaxFrame, func(frame []byte) bool {
			frame[0] = 0 // no kind of frame
			return true
		})
		n.unlock()
	}
	for range 100 {
		require.Empty(t, owes(live))
	}
	p := newProgram(t)
	id := p.resolve(tcp, liveAt)
	createQP(t, id)
	receive(t, id, func() {
		require.NoError(t, librdmacm.Connect(id, param("")))
		p.pass(librdmacm.RDMA_CM_EVENT_ESTABLISHED)
	})
	require.Len(t, owes(stopped), 1)
	for range 100 {
		require.Empty(t, owes(stopped), "the call before has waited for it")
		require.Empty(t, owes(live))
	}
	o := (*outgoing)(n)
	mark := n.link.Way(stopped).Mark()
	for qpn, want := range map[uint32]*link.Way{
		uint32(n.slot)<<qpnBits + 1:  nil,
		uint32(live)<<qpnBits + 1:    n.link.Way(live),
		uint32(stopped)<<qpnBits + 1: n.link.Way(stopped),
		wire.MulticastQP:             n.link.Way(link.Slots),
	} {
		w := o.Way(wire.GIDOf(at.Addr()), wire.GIDOf(at.Addr()), qpn)
		if want == nil {
			require.Nil(t, w)
			continue
		}
		require.Same(t, want, w)
		require.True(t, w.Left(mark), "the process was given up")
	}
	require.NoError(t, process.Process.Signal(syscall.SIGCONT))
	require.Eventually(t, n.link.Idle, patience, time.Millisecond, "the process goes on and does not read")
	require.NoError(t, librdmacm.Disconnect(id))
	p.pass(librdmacm.RDMA_CM_EVENT_DISCONNECTED)
	destroy(t, id)
}

// What a call sends while another one waits, and has given the mutex away, is
// not the other's.
func TestStandAside(t *testing.T) {
	n := emptyNode()
	a, b := &link.Way{}, &link.Way{}
	n.lock()
	n.note(a)
	n.standAside(func() {
		n.note(b) // the worker
		require.Empty(t, n.used)
		n.called = true
		n.note(b) // another call
		n.called, n.used = false, n.used[:0]
	})
	n.note(a)
	require.Len(t, n.used, 1)
	require.Same(t, a, n.used[0])
	n.mu.Unlock()
}
