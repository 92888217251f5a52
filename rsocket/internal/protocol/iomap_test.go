// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// announced returns an end that may write to memory of its peer, and the peer.
func announced(t *testing.T, writerIsBig, ownerIsBig bool, maps ...IOMap) (writer, owner *end) {
	t.Helper()
	a, b := defaults(), defaults()
	a.IOMaps, a.BigEndian, b.BigEndian = len(maps), writerIsBig, ownerIsBig
	writer, owner = connected(t, a, b)
	require.Equal(t, len(maps), owner.PeerIOMaps())
	require.Zero(t, writer.PeerIOMaps())
	for i, m := range maps {
		require.True(t, owner.CanAnnounce())
		p := owner.Announce(i)
		require.Equal(t, IOMapEntry(i), p.Word)
		require.Equal(t, Region{Addr: tableAddr + uint64(TableLen(i)), Key: key, Length: IOMapLen}, p.To)
		require.Equal(t, IOMapLen, p.Len)
		owner.PutIOMap(writer.table[p.To.Addr-tableAddr:], m)
		require.NoError(t, writer.Receive(p.Word, p.Len, writer.table))
	}
	return writer, owner
}

func TestIOMapBytes(t *testing.T) {
	writer, _ := announced(t, true, false, IOMap{0x0102030405060708, Region{0x1112131415161718, 0x21222324, 0x31323334}})
	require.Equal(t, []byte{
		1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24, 0x31, 0x32, 0x33, 0x34,
	}, writer.table[Entries*EntryLen:])
	writer, _ = announced(t, false, true, IOMap{0x0102030405060708, Region{Length: 1}})
	require.Equal(t, []byte{8, 7, 6, 5, 4, 3, 2, 1}, writer.table[Entries*EntryLen:][:8])
}

func TestFind(t *testing.T) {
	writer, _ := announced(t, false, false,
		IOMap{100, Region{1000, 1, 50}}, IOMap{140, Region{2000, 2, 50}}, IOMap{7, Region{3000, 3, 0}}, IOMap{math.MaxUint64, Region{4000, 4, 2}})
	for offset, want := range map[uint64]Region{
		99: {}, 100: {1000, 1, 50}, 149: {1049, 1, 1}, 150: {2010, 2, 40}, 189: {2049, 2, 1}, 190: {},
		7: {}, math.MaxUint64: {4000, 4, 2}, 0: {4001, 4, 1}, 1: {},
	} {
		got, ok := writer.Find(offset)
		require.Equal(t, want, got, offset)
		require.Equal(t, want.Length > 0, ok, offset)
	}
}

// An announcement uses a credit and a place in the send buffer; a direct write
// uses no credit.
func TestIOMapCredits(t *testing.T) {
	c := defaults()
	c.Credits, c.SendQueue, c.SendBuffer = 8, 64, 4096
	a, b := connected(t, c, c)
	for i := range 8 {
		require.True(t, a.CanAnnounce())
		a.Announce(i % 2)
		require.NoError(t, b.Receive(IOMapEntry(i), IOMapLen, b.table), "an index without memory is left out")
	}
	require.False(t, a.CanAnnounce())
	require.Zero(t, a.Room(1))
	require.ErrorIs(t, b.Receive(IOMapEntry(0), IOMapLen, b.table), ErrViolation)
	require.Equal(t, 100, a.RoomDirect(100))
	p := a.WriteDirect(Region{Addr: 5, Key: 6, Length: 100}, 100)
	require.True(t, p.Direct)
	require.Equal(t, 8*IOMapLen, p.Offset)
	require.Equal(t, 8*IOMapLen+100, a.Buffered())
	for p.ID == 0 { // until a request is signaled, which frees all
		p = a.WriteDirect(Region{}, 100)
	}
	a.Complete(p.ID)
	require.Zero(t, a.Buffered())
	a.CloseWrite()
	require.Zero(t, a.RoomDirect(1))
}

// A device with one segment in a request needs an entry in one piece.
func TestIOMapWhole(t *testing.T) {
	c := defaults()
	c.Whole, c.SendBuffer, c.Prompt = true, 4096, true
	a, _ := connected(t, c, c)
	p := a.Send(4090)
	a.Complete(p.ID)
	require.True(t, a.CanAnnounce())
	p = a.Announce(0)
	require.Zero(t, p.Offset)
	a.Complete(p.ID)
	require.Zero(t, a.Buffered())
	require.Equal(t, IOMapLen, a.Offset())
}

func TestIOMaps(t *testing.T) {
	for n, want := range map[int]int{-1: 0, 0: 0, 1: 1, 128: 128, 129: 128, 255: 128, 256: 256, 300: 256, 1000: 768, math.MaxInt: 32512} {
		require.Equal(t, want, IOMaps(n), n)
		h := Hello{Credits: 1, IOMap: want, Table: Region{Length: 2}, Buffer: Region{Length: 1}}
		got, err := ParseHello(h.Marshal())
		require.NoError(t, err)
		require.Equal(t, want, got.IOMap)
	}
}
