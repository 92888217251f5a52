// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"encoding/hex"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibumad"
	"github.com/verbena-go/verbena/generated/libibverbs"
)

// The headers of datagrams, byte by byte as the specification has them.
func TestMarshal(t *testing.T) {
	route, err := RouteThrough(1, 5)
	require.NoError(t, err)
	data := attribute{1: 3, 191: 0xee}
	for _, tt := range []struct {
		name    string
		request request
		want    map[int]string // bytes that are not 0, by where they are
	}{
		{
			"directed",
			request{attribute: attrPortInfo, to: AtRoute(route), modifier: 0x01020304, mkey: 0x1122334455667788},
			map[int]string{
				0: "01810101", 7: "02", 12: "a1b2c3d4", 16: "0015", 20: "01020304", 24: "1122334455667788",
				32: "ffffffff", 129: "0105",
			},
		},
		{
			"to a LID",
			request{attribute: attrNodeInfo, to: AtLID(5), mkey: 1},
			map[int]string{0: "01010101", 12: "a1b2c3d4", 16: "0011", 31: "01"},
		},
		{
			"performance",
			request{attribute: attrExtCounters, to: AtLID(5), set: true, data: data},
			map[int]string{0: "01040102", 12: "a1b2c3d4", 16: "001d", 65: "03", 255: "ee"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var want mad
			for at, text := range tt.want {
				bytes, err := hex.DecodeString(text)
				require.NoError(t, err)
				copy(want[at:], bytes)
			}
			got := tt.request.marshal(0xa1b2c3d4)
			require.Equal(t, want, *got)
			require.Equal(t, uint32(0xa1b2c3d4), got.tid())
		})
	}
}

func TestDescription(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "",
		"node1 HCA-1\x00junk":    "node1 HCA-1",
		strings.Repeat("x", 80):  strings.Repeat("x", smpSize),
		"a\x1b[2Jb\n":            "a\ufffd[2Jb\ufffd",
		"host\u202e\u2028\u200b": "host\ufffd\ufffd\ufffd",
		"\xff\u00e4\u0085":       "\ufffd\u00e4\ufffd",
	} {
		var a attribute
		copy(a[:], text)
		require.Equal(t, want, decodeDescription(&a))
	}
}

func TestDecodeUmad(t *testing.T) {
	buffer := &umadBuffer{
		header: header{Addr: libibumad.MadAddr{Lid: libibverbs.NewBe16(0x1234), Qpn: libibverbs.NewBe32(1)}},
		mad:    mad{0: 1, madSize - 1: 9},
	}
	var p packet
	p.decode(buffer, madSize)
	require.Equal(t, packet{lid: 0x1234, qp: 1, mad: mad{0: 1, madSize - 1: 9}}, p)
	p.decode(buffer, madSize-1)
	require.True(t, p.short)
	buffer.header.Status = uint32(syscall.ETIMEDOUT)
	p.decode(buffer, madSize)
	require.Equal(t, ErrNoAnswer, p.failed)
	buffer.header.Status = uint32(syscall.EHOSTUNREACH)
	p.decode(buffer, madSize)
	require.ErrorIs(t, p.failed, syscall.EHOSTUNREACH)
}

// FuzzAnswers takes bytes for answers: nothing panics, and what is decoded lies
// within its bounds.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte{})
	f.Add((&request{attribute: attrNodeInfo}).marshal(1)[:])
	f.Fuzz(func(t *testing.T, bytes []byte) {
		var m mad
		copy(m[:], bytes)
		for _, r := range []*request{{attribute: attrNodeInfo}, {attribute: attrPortInfo, to: AtLID(1)}, {attribute: attrCounters, to: AtLID(1)}} {
			m.answers(r)
		}
		if s := m.status(); s != 0 {
			require.NotEmpty(t, s.Error())
		}
		a := m.attribute(false)
		n := decodeNodeInfo(a)
		require.LessOrEqual(t, n.NumPorts, 255)
		require.NotEmpty(t, n.Type.String())
		p := decodePortInfo(a)
		for _, text := range []string{p.WidthEnabled.String(), p.SpeedEnabled.String(), p.State.String(), p.PhysState.String(), p.Speed.String(), p.Width.String()} {
			require.NotEmpty(t, text)
		}
		require.Contains(t, []int{0, 256, 512, 1024, 2048, 4096}, p.NeighborMTU)
		decodeSwitchInfo(a)
		for _, r := range decodeDescription(a) {
			require.GreaterOrEqual(t, r, ' ')
		}
		decodePerformance(m.attribute(true))
		var counters Counters
		var extended ExtendedCounters
		decodePlaces(m.attribute(true), counters.places())
		decodePlaces(m.attribute(true), extended.places())
		for _, c := range append(counters.All(), extended.All()...) {
			require.LessOrEqual(t, c.Value, c.Max, c.Name)
		}
	})
}
