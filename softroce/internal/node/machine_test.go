// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/softroce/internal/link"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// A node spares acknowledgements from the time that a queue pair sends without
// waiting for one, until a queue pair waits.
func TestSparedAcks(t *testing.T) {
	n := newNode(&program{}, newDoorbell())
	m := newMachine(n)
	m.Spare()
	require.True(t, m.spares)
	m.Await(1)
	m.Await(1)
	require.False(t, m.spares)
	m.Await(-1)
	m.Spare()
	require.False(t, m.spares, "one waits still")
	m.Await(-1)
	require.False(t, m.spares, "the next request may wait again")
	m.Spare()
	require.True(t, m.spares)
}

// Only one node gets the link that was reserved for the process: on it, another
// would send to itself.
func TestTakeLink(t *testing.T) {
	reserved := &link.Link{}
	choices.Lock()
	before := choices.link
	choices.link = reserved
	choices.Unlock()
	require.Same(t, reserved, takeLink())
	require.Nil(t, takeLink())
	choices.Lock()
	choices.link = before
	choices.Unlock()
}

// A link that cannot start gives its slot back. It needs a bell in memory that
// processes share, for which no descriptor was left here.
func TestLinkThatCannotStart(t *testing.T) {
	firstFree := func() int {
		l, err := link.Reserve()
		require.NoError(t, err)
		require.NoError(t, l.Close())
		return l.Slot()
	}
	free, door := firstFree(), newDoorbell()
	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Max: limit.Max}))
	n := newNode(&program{}, door)
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	require.ErrorContains(t, newMachine(n).join(), "cannot create memory and eventfds")
	require.Equal(t, free, firstFree())
}

// Receive takes all that another process has sent, a full ring, although one
// poll takes a part of it.
func TestReceiveTakesAll(t *testing.T) {
	from, to := newCaller(), newCaller()
	m := from.network.(*machine)
	p := &wire.Packet{
		SGID: wire.GIDOf(loopback), DGID: wire.GIDOf(loopback), Opcode: wire.RCWriteOnly, PKey: wire.DefaultPKey,
		DestQP: 1, Payload: [][]byte{make([]byte, longPacket)},
	}
	sent := uint32(0)
	send := func() {
		from.Lock()
		defer from.Unlock()
		m.link.Send(to.slot, headerLen+p.Size(), true, func(frame []byte) bool { return enframe(frame, p) })
		sent++
	}
	send()
	require.Eventually(t, func() bool { return to.Received() == sent }, patience, time.Millisecond, "the first packet")
	to.Lock() // so that its worker does not receive
	defer to.Unlock()
	for m.link.Idle() {
		send()
	}
	to.Receive()
	require.GreaterOrEqual(t, to.Received(), sent-1, "the last packet has waited for room")
}

// endless is a network whose nodes send on.
type endless struct {
	network
	received int
}

func (e *endless) receive() bool { e.received++; return true }

// Nodes that send on do not keep the caller of Receive.
func TestReceiveEnds(t *testing.T) {
	n := newNode(&program{}, newDoorbell())
	e := &endless{}
	n.network = e
	n.Receive()
	require.Less(t, e.received, 10)
}
