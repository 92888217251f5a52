// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/object"
	"github.com/verbena-go/verbena/internal/sealed"
)

func TestLifetimeOfNothing(t *testing.T) {
	for name, o := range map[string]*object.Object{
		"Device": sealed.Open((*ibverbs.Device)(nil).Internals()).Object(),
		"PD":     sealed.Open((*ibverbs.PD)(nil).Internals()).Object(),
		"MR":     sealed.Open((*ibverbs.MR)(nil).Internals()).Object(),
		"CQ":     sealed.Open((*ibverbs.CQ)(nil).Internals()).Object(),
		"QP":     sealed.Open((*ibverbs.QP)(nil).Internals()).Object(),
		"SRQ":    sealed.Open((*ibverbs.SRQ)(nil).Internals()).Object(),
		"AH":     sealed.Open((*ibverbs.AH)(nil).Internals()).Object(),
	} {
		require.Nil(t, o, name)
		require.ErrorIs(t, o.Use(), os.ErrInvalid, name)
	}
}

// What the program copies to a segment is bounded as what a device writes is.
func TestSegmentOfReceive(t *testing.T) {
	raw := ibverbs.RawSegment(0x1000, 8, 7)
	for name, tt := range map[string]struct {
		segment ibverbs.Segment
		want    string
	}{
		"device memory": {raw, "segment 3: the memory of raw memory with key 0x7 is not mapped"},
		"outside":       {raw.Sub(4, 8), "segment 3: segment of 8 bytes at 4 is outside"},
		"zero":          {ibverbs.Segment{}, "segment 3: segment without a memory region"},
	} {
		err := sealed.Open(tt.segment.Internals()).CheckRecv(3)
		require.ErrorIs(t, err, syscall.EINVAL, name)
		require.ErrorContains(t, err, tt.want, name)
	}
	require.NoError(t, sealed.Open(raw.Sub(8, 0).Internals()).CheckRecv(0))

	memory := make([]byte, 3)
	rest, err := sealed.Open(ibverbs.InlineBytes(memory).Internals()).Fill([]byte("hello"))
	require.NoError(t, err)
	require.Equal(t, "hel", string(memory))
	require.Equal(t, "lo", string(rest))
}

func TestFromRaw(t *testing.T) {
	require.Zero(t, ibverbs.QPAttrFromRaw(nil))
	require.Zero(t, ibverbs.AHAttrFromRaw(nil))
	path := libibverbs.AhAttr{PortNum: 1, Sl: 2, IsGlobal: 1, Grh: libibverbs.GlobalRoute{HopLimit: 3}}
	require.Equal(t, ibverbs.AHAttr{Port: 1, SL: 2, HopLimit: 3}, ibverbs.AHAttrFromRaw(&path))
}
