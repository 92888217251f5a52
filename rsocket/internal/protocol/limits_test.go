// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The largest target table is accepted.
func TestLargestTable(t *testing.T) {
	hello := Hello{Credits: 1, Table: Region{1, 2, maxEntries}, Buffer: Region{3, 4, 5}}
	got, err := ParseHello(hello.Marshal())
	require.NoError(t, err)
	require.Equal(t, hello, got)
	hello.Table.Length++
	_, err = ParseHello(hello.Marshal())
	require.ErrorIs(t, err, ErrViolation)
}

// A quarter of the send buffer may be in use without a completion to come.
func TestSignalsAtAQuarter(t *testing.T) {
	const quarter = 1000
	for _, more := range []int{0, 1} {
		config := defaults()
		config.SendBuffer = leastData + 4*quarter
		a, _ := connected(t, config, config)
		require.Equal(t, quarter+more, a.write(make([]byte, quarter+more), config.SendBuffer))
		require.Equal(t, more == 1, a.out[0].ID != 0)
	}
}

// Receives are left for control messages if the peer has four times as many as
// there may be, and not if it has fewer.
func TestReceivesAreLeftOfFew(t *testing.T) {
	for _, credits := range []uint16{4*ControlSlots - 1, 4 * ControlSlots} {
		config := defaults()
		config.Credits = credits
		a, _ := connected(t, defaults(), config)
		require.NotZero(t, a.update())
		kept := 0
		if credits == 4*ControlSlots {
			kept = 1
		}
		for range int(credits) - kept {
			require.Equal(t, 1, a.write([]byte{1}, 1), "%d credits", credits)
		}
		require.Zero(t, a.write([]byte{1}, 1), "%d credits", credits)
	}
}

// Room counts the last free bytes.
func TestRoomForTheLastBytes(t *testing.T) {
	config := defaults()
	config.SendBuffer = 2 * leastData
	a, _ := connected(t, config, defaults())
	require.Equal(t, leastData, a.write(make([]byte, leastData), leastData))
	require.Equal(t, leastData, a.Room(leastData))
	require.Equal(t, leastData, a.Room(leastData+1))
	require.Equal(t, leastData-1, a.write(make([]byte, leastData-1), leastData))
	require.Equal(t, 1, a.Room(1))
	require.Zero(t, a.Room(2))
}

// A message has one piece of the send buffer if the device has no more
// segments, and two pieces otherwise.
func TestOnePiece(t *testing.T) {
	for whole, want := range map[bool]int{false: 100, true: 40} {
		config := defaults()
		config.SendBuffer, config.Whole = 4*leastData, whole
		a, b := connected(t, config, defaults())
		first := config.SendBuffer - 40
		require.Equal(t, first, a.write(make([]byte, first), first))
		a.deliverAll(b)
		b.read(first)
		b.update()
		b.deliverAll(a)
		require.Equal(t, want, a.write(make([]byte, 100), 100))
		require.Equal(t, 60, a.write(make([]byte, 60), 60))
	}
}

// Bytes from outside the send buffer take a slot, whose completion is known,
// and nothing of the buffer.
func TestSendOutside(t *testing.T) {
	a, _ := connected(t, defaults(), defaults())
	slots := a.slots
	require.Equal(t, 100, a.RoomOutside(100))
	p := a.SendOutside(100)
	require.NotZero(t, p.ID)
	require.Equal(t, Data(100), p.Word)
	require.Equal(t, Region{bufferAddr, key, half}, p.To)
	require.Zero(t, a.Buffered())
	require.Zero(t, a.Offset())
	require.Equal(t, slots-1, a.slots)
	require.False(t, a.Idle())
	a.Complete(p.ID)
	require.Equal(t, slots, a.slots)
	require.True(t, a.Idle())
}

// An end is idle whose requests on their way have no ID, be they for data or
// not.
func TestIdleWithQuietRequests(t *testing.T) {
	a, b := connected(t, defaults(), defaults())
	require.Equal(t, 1, a.write([]byte{1}, 1))
	require.Zero(t, a.out[0].ID)
	require.True(t, a.Idle(), "data")
	require.NotZero(t, b.update())
	require.Zero(t, b.out[0].ID)
	require.True(t, b.Idle(), "an update")
	require.NotZero(t, a.update())
	require.True(t, a.Idle(), "both")
	require.Equal(t, KeepAlive, a.post(a.KeepAlive()))
	require.False(t, a.Idle())
	a.deliverAll(b)
	b.deliverAll(a)
	require.True(t, a.Idle())
}

// Updates go to one entry of the peer's table after the other, and their bytes
// come from one slot after the other.
func TestUpdatesTakeTurns(t *testing.T) {
	config := defaults()
	config.Prompt = true
	a, b := connected(t, config, config)
	peer := a.peer
	peer.Table.Length = 3
	b.Connect(peer)
	require.NotZero(t, b.update())
	for i := range 7 {
		require.Equal(t, half, func() (n int) {
			// a's table has two entries, and what goes to the third is put
			// where a looks.
			for n < half {
				n += a.write(make([]byte, half-n), LongData)
			}
			return n
		}())
		require.Equal(t, a.out[0].Len, half)
		a.deliverAll(b)
		b.read(half)
		m := b.out[len(b.out)-1]
		require.EqualValues(t, tableAddr+EntryLen*((1+i)%3), m.To.Addr)
		require.Equal(t, (1+i)%ControlSlots, m.Slot)
		m.To.Addr = tableAddr + EntryLen*uint64((1+i)%2)
		b.out[len(b.out)-1] = m
		b.deliverAll(a)
		require.NotZero(t, b.update())
	}
}

// What comes from a peer after it has ended the connection changes nothing, and
// this end says nothing more.
func TestAfterTheEnd(t *testing.T) {
	ends := map[string]func(a, b *end){
		"by the peer":  func(a, b *end) { b.post(b.State.Disconnect()); b.deliverAll(a) },
		"by this end":  func(a, b *end) { a.post(a.State.Disconnect()); a.deliverAll(b) },
		"by halves":    func(a, b *end) { a.post(a.CloseWrite()); b.post(b.CloseWrite()); a.deliverAll(b); b.deliverAll(a) },
		"not yet told": func(a, _ *end) { a.post(a.State.Disconnect()); a.out = nil },
	}
	for name, ending := range ends {
		t.Run(name, func(t *testing.T) {
			a, b := connected(t, defaults(), defaults())
			a.spare = half // so that an update is due
			ending(a, b)
			require.Zero(t, a.post(a.Update()))
			require.Zero(t, a.post(a.KeepAlive()))
			require.Zero(t, a.post(a.CloseRead()))
			require.Zero(t, a.post(a.State.Disconnect()))
			a.writable = true
			require.Zero(t, a.post(a.CloseWrite()))
			if a.Disconnected() {
				require.Zero(t, a.Room(1))
				require.NoError(t, a.Receive(Update(1), 7, nil), "is not looked at")
			}
		})
	}
}

// After Disconnect this end neither reads nor writes, though the peer does not
// know yet.
func TestDisconnectClosesBoth(t *testing.T) {
	a, _ := connected(t, defaults(), defaults())
	require.Equal(t, Disconnect, a.post(a.State.Disconnect()))
	require.False(t, a.Disconnected())
	require.Zero(t, a.Room(1))
	require.Zero(t, a.RoomOutside(1))
	require.Zero(t, a.post(a.CloseWrite()))
	require.Zero(t, a.post(a.State.Disconnect()), "once")
}

// Without a free slot there is no update.
func TestUpdateWaitsForASlot(t *testing.T) {
	config := defaults()
	config.Prompt = true
	a, b := connected(t, config, config)
	for range ControlSlots {
		require.True(t, a.HasControl())
		a.granted = a.arrived
		require.NotZero(t, a.update())
	}
	require.False(t, a.HasControl())
	a.granted = a.arrived
	require.Zero(t, a.update())
	a.deliverAll(b)
	require.True(t, a.HasControl())
	require.NotZero(t, a.update())
}
