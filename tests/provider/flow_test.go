//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/flow"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

// specs returns the specs of a rule, which lie behind its struct.
func specs(call fakelib.Call) []byte {
	attr := fakelib.Struct[libibverbs.FlowAttr](call, 1)
	header := int(unsafe.Sizeof(*attr))
	return fakelib.Slice[byte](call, 1, int(attr.Size))[header:]
}

func TestFlowSpecs(t *testing.T) {
	r := open(t)
	qp := r.qp(ibverbs.QPTypeRawPacket)
	mac := flow.MAC{0x66, 0x11, 0x22, 0x33, 0x44, 0x55}
	// All numbers of packets are in network byte order. Type, size and the tag
	// are in the host's; this test writes them as a little-endian host has them.
	for name, tt := range map[string]struct {
		spec flow.Spec
		want string // type, size, padding, value, mask
	}{
		"Ethernet": {
			flow.Ethernet{
				Dst: flow.Exact(mac), Src: flow.Match[flow.MAC]{Value: flow.MAC{1}, Mask: flow.MAC{0xff}},
				EtherType: flow.Exact[uint16](0x0800), VLAN: flow.Match[uint16]{Value: 0x123, Mask: 0xfff},
			},
			"20000000 2800 661122334455 010000000000 0800 0123 ffffffffffff ff0000000000 ffff 0fff 0000",
		},
		"inner Ethernet": {
			flow.Ethernet{Inner: true},
			"20010000 2800" + strings.Repeat("00", 34),
		},
		"IPv4": {
			flow.IPv4{Src: netip.MustParsePrefix("11.134.200.6/32"), Dst: netip.MustParsePrefix("10.9.8.7/12")},
			"30000000 1800 0000 0b86c806 0a000000 ffffffff fff00000",
		},
		"any inner IPv4": {flow.IPv4{Inner: true}, "30010000 1800 0000" + strings.Repeat("00", 16)},
		"every IPv4":     {flow.IPv4{Src: netip.MustParsePrefix("0.0.0.0/0")}, "30000000 1800 0000" + strings.Repeat("00", 16)},
		"IPv4Ext": {
			flow.IPv4Ext{
				Inner: true, Src: netip.MustParsePrefix("1.2.3.4/32"), Dst: netip.MustParsePrefix("5.6.7.0/24"),
				Protocol: flow.Exact[uint8](17), TOS: flow.Match[uint8]{Value: 0x10, Mask: 0xfc},
				TTL: flow.Exact[uint8](64), Flags: flow.Match[uint8]{Value: 2, Mask: 2},
			},
			"32010000 2000 0000 01020304 05060700 11 10 40 02 ffffffff ffffff00 ff fc ff 02",
		},
		"IPv4 with masks": {
			flow.IPv4{
				Src: netip.MustParsePrefix("10.0.0.7/8"), SrcMask: netip.MustParseAddr("255.0.0.255"),
				Dst: netip.MustParsePrefix("0.0.0.1/32"), DstMask: netip.MustParseAddr("0.0.0.1"),
			},
			"30000000 1800 0000 0a000007 00000001 ff0000ff 00000001",
		},
		"IPv4Ext with a mask": {
			flow.IPv4Ext{Dst: netip.MustParsePrefix("1.2.0.4/32"), DstMask: netip.MustParseAddr("255.255.0.255")},
			"32000000 2000 0000 00000000 01020004 00000000 00000000 ffff00ff 00000000",
		},
		"IPv6 with a mask": {
			flow.IPv6{Src: netip.MustParsePrefix("fe80::1/128"), SrcMask: netip.MustParseAddr("ffff::ffff")},
			"31000000 5800 0000 fe800000000000000000000000000001" + strings.Repeat("00", 24) +
				"ffff000000000000000000000000ffff" + strings.Repeat("00", 24),
		},
		"IPv6": {
			flow.IPv6{
				Src: netip.MustParsePrefix("2001:db8::1/128"), Dst: netip.MustParsePrefix("2001:db8:ffff::/40"),
				FlowLabel: flow.Exact[uint32](0x12345), NextHeader: flow.Exact[uint8](6),
				TrafficClass: flow.Exact[uint8](7), HopLimit: flow.Exact[uint8](8),
			},
			"31000000 5800 0000 20010db8000000000000000000000001 20010db8ff0000000000000000000000 00012345 06 07 08 00" +
				"ffffffffffffffffffffffffffffffff ffffffffff0000000000000000000000 000fffff ff ff ff 00",
		},
		"TCP": {
			flow.TCP{DstPort: flow.Exact[uint16](443), SrcPort: flow.Match[uint16]{Value: 0x4000, Mask: 0xc000}},
			"40000000 1000 01bb 4000 ffff c000 0000",
		},
		"inner UDP": {
			flow.UDP{Inner: true, DstPort: flow.Exact[uint16](4791)},
			"41010000 1000 12b7 0000 ffff 0000 0000",
		},
		"ESP": {
			flow.ESP{SPI: flow.Exact[uint32](0x01020304), Seq: flow.Match[uint32]{Value: 5, Mask: 7}},
			"34000000 1800 0000 01020304 00000005 ffffffff 00000007",
		},
		"VXLAN": {flow.VXLAN{VNI: flow.Exact[uint32](0xabcdef)}, "50000000 1000 0000 00abcdef 00ffffff"},
		"GRE": {
			flow.GRE{
				Flags: flow.Match[uint16]{Value: 0x2000, Mask: 0xb000}, Protocol: flow.Exact[uint16](0x6558),
				Key: flow.Exact[uint32](0x11223344),
			},
			"51000000 1800 0000 2000 6558 11223344 b000 ffff ffffffff",
		},
		"MPLS": {
			flow.MPLS{Inner: true, Entry: flow.Match[uint32]{Value: 0xabcde000, Mask: 0xfffff000}},
			"60010000 1000 0000 abcde000 fffff000",
		},
		"tag":  {flow.Tag(0x01020304), "00100000 0c00 0000 04030201"},
		"drop": {flow.Drop{}, "01100000 0800 0000"},
	} {
		t.Run(name, func(t *testing.T) {
			rule := must(flow.Create(qp, flow.Config{Specs: []flow.Spec{tt.spec}}))(t)
			want := must(hex.DecodeString(strings.ReplaceAll(tt.want, " ", "")))(t)
			require.Equal(t, want, specs(r.p.Only("ibv_create_flow")))
			require.NoError(t, rule.Close())
			r.p.Forget()
		})
	}
}

func TestCreateFlow(t *testing.T) {
	r := open(t)
	qp := r.qp(ibverbs.QPTypeUD)
	action := keep(t, must(flow.CreateESPAction(r.c, flow.ESPConfig{Key: &flow.AESGCM{Key: make([]byte, 16)}}))(t))
	counters := keep(t, must(flow.CreateCounters(r.c))(t))
	r.p.Forget()
	// Behind the tag, which has 12 bytes, no pointer is aligned.
	rule := must(flow.Create(qp, flow.Config{
		Priority: 65535, Port: 2, Flags: flow.DontTrap,
		Specs: []flow.Spec{
			&flow.IPv6{}, flow.Tag(7), flow.Count{Counters: counters}, flow.Apply{Action: action},
		},
	}))(t)
	call := r.p.Only("ibv_create_flow")
	require.Equal(t, address(qp.Raw()), call.Arg(0))
	require.Equal(t, libibverbs.FlowAttr{
		Type: flow.Normal, Size: 20 + 88 + 12 + 16 + 16, Priority: 65535, NumOfSpecs: 4, Port: 2, Flags: 2,
	}, *fakelib.Struct[libibverbs.FlowAttr](call, 1))
	var count libibverbs.FlowSpecCounterAction
	var handle libibverbs.FlowSpecActionHandle
	copy(bytesOf(&count), specs(call)[88+12:])
	copy(bytesOf(&handle), specs(call)[88+12+16:])
	require.Equal(t, libibverbs.FlowSpecCounterAction{Type: 0x1003, Size: 16, Counters: counters.Raw()}, count)
	require.Equal(t, libibverbs.FlowSpecActionHandle{Type: 0x1002, Size: 16, Action: action.Raw()}, handle)
	require.Equal(t, qp, rule.QP())

	for _, parent := range []interface{ Close() error }{qp, action, counters} {
		var busy *ibverbs.BusyError
		require.ErrorAs(t, parent.Close(), &busy)
		require.Len(t, busy.Children, 1)
		require.Contains(t, busy.Children[0], "flow ")
	}
	require.Empty(t, r.p.Names())
	raw := address(rule.Raw())
	r.p.Next("ibv_destroy_flow").Returns(int64(syscall.EINVAL), 0)
	require.ErrorIs(t, rule.Close(), syscall.EINVAL)
	require.NoError(t, rule.Close())
	require.Equal(t, []int64{raw}, r.p.Calls()[1].Args())
}

func TestFlowTypes(t *testing.T) {
	r := open(t)
	qp := r.qp(ibverbs.QPTypeRawPacket)
	for flowType := flow.Normal; flowType <= flow.Sniffer; flowType++ {
		rule := must(flow.Create(qp, flow.Config{Type: flowType, Flags: flow.Egress}))(t)
		require.Equal(t, libibverbs.FlowAttr{Type: flowType, Size: 20, Port: 1, Flags: 4},
			*fakelib.Struct[libibverbs.FlowAttr](r.p.Only("ibv_create_flow"), 1))
		require.NoError(t, rule.Close())
		r.p.Forget()
	}
}

// As many specs as there can be, of the largest size.
func TestLargestFlow(t *testing.T) {
	r := open(t)
	all := slices.Repeat([]flow.Spec{flow.IPv6{HopLimit: flow.Exact[uint8](1)}}, flow.MaxSpecs)
	keep(t, must(flow.Create(r.qp(ibverbs.QPTypeRawPacket), flow.Config{Specs: all}))(t))
	require.Len(t, specs(r.p.Only("ibv_create_flow")), 880)
}

func TestCreateFlowFails(t *testing.T) {
	r := open(t)
	qp := r.qp(ibverbs.QPTypeRawPacket)
	other := keep(t, must(ibverbs.Open(""))(t))
	foreign := keep(t, must(flow.CreateCounters(other))(t))
	foreignESP := keep(t, must(flow.CreateESPAction(other, flow.ESPConfig{Key: &flow.AESGCM{Key: make([]byte, 16)}}))(t))
	r.p.Forget()
	one := func(s flow.Spec) flow.Config { return flow.Config{Specs: []flow.Spec{s}} }
	for want, config := range map[string]flow.Config{
		"flow of 11 specs, more than 10":               {Specs: slices.Repeat([]flow.Spec{flow.Drop{}}, 11)},
		"flow of type FlowAttrType(4)":                 {Type: 4},
		"flow of priority -1":                          {Priority: -1},
		"flow of priority 65536":                       {Priority: 65536},
		"flow on port -1":                              {Port: -1},
		"flow on port 256":                             {Port: 256},
		"DontTrap in a flow":                           {Type: flow.Sniffer, Flags: flow.DontTrap},
		"ibv_create_flow: spec 0 is nil":               one(nil),
		"spec 0: counters of fake0 is not of the same": one(flow.Count{Counters: foreign}),
		"spec 0: ESP action for SPI 0x0 of fake0 is":   one(flow.Apply{Action: foreignESP}),
		"spec 0: Src is 1.2.3.4/32":                    one(flow.IPv6{Src: netip.MustParsePrefix("1.2.3.4/32")}),
		"spec 0: Dst is ::/0":                          one(flow.IPv4{Dst: netip.MustParsePrefix("::/0")}),
		"spec 0: Dst is fe80::/10":                     one(flow.IPv4Ext{Dst: netip.MustParsePrefix("fe80::/10")}),
		"spec 0: Src is invalid Prefix":                one(flow.IPv4{Src: netip.PrefixFrom(netip.MustParseAddr("1.2.3.4"), 33)}),
		"spec 0: Src is 10.0.0.7 outside of the mask 255.0.0.0": one(flow.IPv4{
			Src: netip.MustParsePrefix("10.0.0.7/8"), SrcMask: netip.MustParseAddr("255.0.0.0"),
		}),
		"spec 0: DstMask is ffff::":                    one(flow.IPv4Ext{Dst: netip.MustParsePrefix("1.2.3.4/32"), DstMask: netip.MustParseAddr("ffff::")}),
		"spec 0: SrcMask is ::ff%x":                    one(flow.IPv6{Src: netip.MustParsePrefix("::1/128"), SrcMask: netip.MustParseAddr("::ff%x")}),
		"spec 0: Dst is invalid Prefix":                one(flow.IPv4{DstMask: netip.MustParseAddr("255.0.0.255")}),
		"spec 0: DstPort is 80 outside of the mask 0":  one(flow.TCP{DstPort: flow.Match[uint16]{Value: 80}}),
		"spec 0: VNI is 16777216 outside":              one(flow.VXLAN{VNI: flow.Exact[uint32](1 << 24)}),
		"spec 0: FlowLabel is 1048576 outside":         one(flow.IPv6{FlowLabel: flow.Exact[uint32](1 << 20)}),
		"Dst is 01:00:00:00:00:00 outside of the mask": one(flow.Ethernet{Dst: flow.Match[flow.MAC]{Value: flow.MAC{1}}}),
	} {
		_, err := flow.Create(qp, config)
		require.ErrorIs(t, err, syscall.EINVAL, want)
		require.ErrorContains(t, err, want)
	}
	for _, s := range []flow.Spec{(*flow.TCP)(nil), (*flow.Count)(nil)} {
		_, err := flow.Create(qp, one(s))
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	for _, s := range []flow.Spec{flow.Count{}, flow.Apply{}} {
		_, err := flow.Create(qp, one(s))
		require.ErrorIs(t, err, os.ErrInvalid)
	}
	_, err := flow.Create(r.qp(ibverbs.QPTypeRC), flow.Config{})
	require.ErrorContains(t, err, "queue pair of type IBV_QPT_RC")
	require.Empty(t, r.p.Names())

	r.p.Next("ibv_create_flow").Returns(0, syscall.EOPNOTSUPP)
	_, err = flow.Create(qp, flow.Config{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "ibv_create_flow (QP ")
}

// A device that was removed answers EIO to every call: that counts as closed, while
// an EIO of one that is there does not.
func TestSteeringOnRemovedDevice(t *testing.T) {
	for kind, tt := range map[string]struct {
		call    string
		destroy func(o closer) error // what C keeps
	}{
		"rule":       {"ibv_destroy_flow", func(o closer) error { return libibverbs.DestroyFlow(o.(*flow.Rule).Raw()) }},
		"ESP action": {"ibv_destroy_flow_action", func(o closer) error { return libibverbs.DestroyFlowAction(o.(*flow.Action).Raw()) }},
		"counters":   {"ibv_destroy_counters", func(o closer) error { return libibverbs.DestroyCounters(o.(*flow.Counters).Raw()) }},
		"indirection table": {"ibv_destroy_rwq_ind_table", func(o closer) error {
			return libibverbs.DestroyRwqIndTable(o.(*flow.IndirectionTable).Raw())
		}},
		"RSS QP": {"ibv_destroy_qp", func(o closer) error { return libibverbs.DestroyQp(o.(*ibverbs.QP).Raw()) }},
	} {
		t.Run(kind, func(t *testing.T) {
			r := open(t)
			o := kinds[kind](t, r)
			r.p.Next(tt.call).Returns(int64(syscall.EIO), 0)
			require.ErrorIs(t, o.Close(), syscall.EIO)
			r.p.Next(tt.call).Returns(int64(syscall.EIO), 0)
			r.p.Next("ibv_create_comp_channel").Returns(0, syscall.EIO)
			require.NoError(t, o.Close())
			require.NoError(t, tt.destroy(o))
		})
	}
}

func bytesOf[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }
