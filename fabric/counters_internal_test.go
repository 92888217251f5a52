// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"encoding/binary"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeCounters is a port whose counters are asked for.
type fakeCounters struct {
	can Performance

	mu   sync.Mutex
	data map[uint16][]byte // what it answers, by attribute
	sets []attribute       // that it was asked to set
}

func (f *fakeCounters) answer(p *packet) []*packet {
	f.mu.Lock()
	defer f.mu.Unlock()
	number := binary.BigEndian.Uint16(p.mad[offAttribute:])
	if p.mad[offMethod] == methodSet {
		f.sets = append(f.sets, *p.mad.attribute(true))
	}
	if number == attrClassPortInfo.number {
		var a attribute
		a.setField(16, 16, uint64(f.can.Capabilities))
		a.setField(32, 27, uint64(f.can.Capabilities2))
		return []*packet{response(p, 0, a[:])}
	}
	return []*packet{response(p, 0, f.data[number])}
}

// ones are the bytes of counters that all have their largest values.
func ones() []byte {
	var a attribute
	for i := range a {
		a[i] = 0xff
	}
	return a[:]
}

// Counters that have their largest values say so, and those that a node does
// not have are 0, whatever it sends.
func TestSaturated(t *testing.T) {
	all := uint16(perfAllPorts | perfExtended | perfXmitWait | perfQP1Dropped)
	for _, tt := range []struct {
		can  Performance
		zero map[string]bool
	}{
		{can: Performance{Capabilities: all, Capabilities2: perfExtendedErrors}},
		{can: Performance{Capabilities: all &^ perfXmitWait, Capabilities2: perfExtendedErrors}, zero: map[string]bool{"PortXmitWait": true}},
		{can: Performance{Capabilities: all &^ perfQP1Dropped, Capabilities2: perfExtendedErrors}, zero: map[string]bool{"QP1Dropped": true}},
	} {
		f := &fakeCounters{can: tt.can, data: map[uint16][]byte{attrCounters.number: ones(), attrExtCounters.number: ones()}}
		c, _ := newFake(t, Config{}, f.answer)
		counters, err := c.Counters(t.Context(), 5, 1)
		require.NoError(t, err)
		extended, err := c.ExtendedCounters(t.Context(), 5, 1)
		require.NoError(t, err)
		require.Len(t, counters.All(), 18)
		require.Len(t, extended.All(), 22)
		for _, counter := range append(counters.All(), extended.All()...) {
			require.Equal(t, !tt.zero[counter.Name], counter.Saturated(), counter.Name)
		}
		require.Equal(t, uint64(math.MaxUint64), extended.XmitData)
		require.Equal(t, uint64(math.MaxUint32), counters.XmitData)
		require.EqualValues(t, math.MaxUint16, counters.SymbolErrors)
		require.EqualValues(t, math.MaxUint8, counters.LinkDowned)
		require.EqualValues(t, 15, counters.LocalLinkIntegrityErrors)
	}
}

func TestExtendedParts(t *testing.T) {
	for _, tt := range []struct {
		can  Performance
		want int // counters
	}{
		{Performance{Capabilities: perfExtendedNoKind}, 4},
		{Performance{Capabilities: perfExtended}, 8},
		{Performance{Capabilities: perfExtended, Capabilities2: perfExtendedErrors}, 8 + 12},
		{Performance{Capabilities: perfExtended | perfXmitWait | perfQP1Dropped, Capabilities2: perfExtendedErrors}, 8 + 14},
	} {
		c, _ := newFake(t, Config{}, (&fakeCounters{can: tt.can, data: map[uint16][]byte{attrExtCounters.number: ones()}}).answer)
		require.True(t, tt.can.Extended())
		extended, err := c.ExtendedCounters(t.Context(), 5, 1)
		require.NoError(t, err)
		there := 0
		for _, counter := range extended.All() {
			if counter.Value != 0 {
				there++
			}
		}
		require.Equal(t, tt.want, there)
	}
	require.False(t, Performance{}.Extended())
	require.True(t, Performance{Capabilities: perfAllPorts}.AllPorts())
}

// A reset selects the counters that the node has, of the port.
func TestReset(t *testing.T) {
	for _, tt := range []struct {
		can                   Performance
		select2, extSelect2   uint64
		selected, extSelected uint64
	}{
		{can: Performance{}, selected: 0xffff, extSelected: 0xffff},
		{can: Performance{Capabilities: perfXmitWait}, selected: 0xffff, select2: 1, extSelected: 0xffff},
		{
			can:      Performance{Capabilities: perfXmitWait | perfQP1Dropped, Capabilities2: perfExtendedErrors},
			selected: 0xffff, select2: 3, extSelected: 0xffff, extSelect2: 0x3fff,
		},
	} {
		f := &fakeCounters{can: tt.can, data: map[uint16][]byte{}}
		c, _ := newFake(t, Config{}, f.answer)
		require.NoError(t, c.ResetCounters(t.Context(), 5, 7))
		require.NoError(t, c.ResetExtendedCounters(t.Context(), 5, AllPorts))
		var plain, extended attribute
		plain.setField(8, 8, 7)
		plain.setField(16, 16, tt.selected)
		plain.setField(144, 8, tt.select2)
		extended.setField(8, 8, 255)
		extended.setField(16, 16, tt.extSelected)
		extended.setField(32, 32, tt.extSelect2)
		require.Equal(t, []attribute{plain, extended}, f.sets)
	}
}
