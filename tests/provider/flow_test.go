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
	mac := ibverbs.MAC{0x66, 0x11, 0x22, 0x33, 0x44, 0x55}
	// All numbers of packets are in network byte order. Type, size and the tag
	// are in the host's; this test writes them as a little-endian host has them.
	for name, tt := range map[string]struct {
		spec ibverbs.FlowSpec
		want string // type, size, padding, value, mask
	}{
		"Ethernet": {
			ibverbs.FlowEthernet{
				Dst: ibverbs.Exact(mac), Src: ibverbs.FlowMatch[ibverbs.MAC]{Value: ibverbs.MAC{1}, Mask: ibverbs.MAC{0xff}},
				EtherType: ibverbs.Exact[uint16](0x0800), VLAN: ibverbs.FlowMatch[uint16]{Value: 0x123, Mask: 0xfff},
			},
			"20000000 2800 661122334455 010000000000 0800 0123 ffffffffffff ff0000000000 ffff 0fff 0000",
		},
		"inner Ethernet": {
			ibverbs.FlowEthernet{Inner: true},
			"20010000 2800" + strings.Repeat("00", 34),
		},
		"IPv4": {
			ibverbs.FlowIPv4{Src: netip.MustParsePrefix("11.134.200.6/32"), Dst: netip.MustParsePrefix("10.9.8.7/12")},
			"30000000 1800 0000 0b86c806 0a000000 ffffffff fff00000",
		},
		"any inner IPv4": {ibverbs.FlowIPv4{Inner: true}, "30010000 1800 0000" + strings.Repeat("00", 16)},
		"every IPv4":     {ibverbs.FlowIPv4{Src: netip.MustParsePrefix("0.0.0.0/0")}, "30000000 1800 0000" + strings.Repeat("00", 16)},
		"IPv4Ext": {
			ibverbs.FlowIPv4Ext{
				Inner: true, Src: netip.MustParsePrefix("1.2.3.4/32"), Dst: netip.MustParsePrefix("5.6.7.0/24"),
				Protocol: ibverbs.Exact[uint8](17), TOS: ibverbs.FlowMatch[uint8]{Value: 0x10, Mask: 0xfc},
				TTL: ibverbs.Exact[uint8](64), Flags: ibverbs.FlowMatch[uint8]{Value: 2, Mask: 2},
			},
			"32010000 2000 0000 01020304 05060700 11 10 40 02 ffffffff ffffff00 ff fc ff 02",
		},
		"IPv4 with masks": {
			ibverbs.FlowIPv4{
				Src: netip.MustParsePrefix("10.0.0.7/8"), SrcMask: netip.MustParseAddr("255.0.0.255"),
				Dst: netip.MustParsePrefix("0.0.0.1/32"), DstMask: netip.MustParseAddr("0.0.0.1"),
			},
			"30000000 1800 0000 0a000007 00000001 ff0000ff 00000001",
		},
		"IPv4Ext with a mask": {
			ibverbs.FlowIPv4Ext{Dst: netip.MustParsePrefix("1.2.0.4/32"), DstMask: netip.MustParseAddr("255.255.0.255")},
			"32000000 2000 0000 00000000 01020004 00000000 00000000 ffff00ff 00000000",
		},
		"IPv6 with a mask": {
			ibverbs.FlowIPv6{Src: netip.MustParsePrefix("fe80::1/128"), SrcMask: netip.MustParseAddr("ffff::ffff")},
			"31000000 5800 0000 fe800000000000000000000000000001" + strings.Repeat("00", 24) +
				"ffff000000000000000000000000ffff" + strings.Repeat("00", 24),
		},
		"IPv6": {
			ibverbs.FlowIPv6{
				Src: netip.MustParsePrefix("2001:db8::1/128"), Dst: netip.MustParsePrefix("2001:db8:ffff::/40"),
				FlowLabel: ibverbs.Exact[uint32](0x12345), NextHeader: ibverbs.Exact[uint8](6),
				TrafficClass: ibverbs.Exact[uint8](7), HopLimit: ibverbs.Exact[uint8](8),
			},
			"31000000 5800 0000 20010db8000000000000000000000001 20010db8ff0000000000000000000000 00012345 06 07 08 00" +
				"ffffffffffffffffffffffffffffffff ffffffffff0000000000000000000000 000fffff ff ff ff 00",
		},
		"TCP": {
			ibverbs.FlowTCP{DstPort: ibverbs.Exact[uint16](443), SrcPort: ibverbs.FlowMatch[uint16]{Value: 0x4000, Mask: 0xc000}},
			"40000000 1000 01bb 4000 ffff c000 0000",
		},
		"inner UDP": {
			ibverbs.FlowUDP{Inner: true, DstPort: ibverbs.Exact[uint16](4791)},
			"41010000 1000 12b7 0000 ffff 0000 0000",
		},
		"ESP": {
			ibverbs.FlowESP{SPI: ibverbs.Exact[uint32](0x01020304), Seq: ibverbs.FlowMatch[uint32]{Value: 5, Mask: 7}},
			"34000000 1800 0000 01020304 00000005 ffffffff 00000007",
		},
		"VXLAN": {ibverbs.FlowVXLAN{VNI: ibverbs.Exact[uint32](0xabcdef)}, "50000000 1000 0000 00abcdef 00ffffff"},
		"GRE": {
			ibverbs.FlowGRE{
				Flags: ibverbs.FlowMatch[uint16]{Value: 0x2000, Mask: 0xb000}, Protocol: ibverbs.Exact[uint16](0x6558),
				Key: ibverbs.Exact[uint32](0x11223344),
			},
			"51000000 1800 0000 2000 6558 11223344 b000 ffff ffffffff",
		},
		"MPLS": {
			ibverbs.FlowMPLS{Inner: true, Entry: ibverbs.FlowMatch[uint32]{Value: 0xabcde000, Mask: 0xfffff000}},
			"60010000 1000 0000 abcde000 fffff000",
		},
		"tag":  {ibverbs.FlowTag(0x01020304), "00100000 0c00 0000 04030201"},
		"drop": {ibverbs.FlowDrop{}, "01100000 0800 0000"},
	} {
		t.Run(name, func(t *testing.T) {
			flow := must(qp.CreateFlow(ibverbs.FlowConfig{Specs: []ibverbs.FlowSpec{tt.spec}}))(t)
			want := must(hex.DecodeString(strings.ReplaceAll(tt.want, " ", "")))(t)
			require.Equal(t, want, specs(r.p.Only("ibv_create_flow")))
			require.NoError(t, flow.Close())
			r.p.Forget()
		})
	}
}

func TestCreateFlow(t *testing.T) {
	r := open(t)
	qp := r.qp(ibverbs.QPTypeUD)
	action := keep(t, must(r.c.CreateESPAction(ibverbs.ESPConfig{Key: &ibverbs.AESGCM{Key: make([]byte, 16)}}))(t))
	counters := keep(t, must(r.c.CreateCounters())(t))
	r.p.Forget()
	// Behind the tag, which has 12 bytes, no pointer is aligned.
	flow := must(qp.CreateFlow(ibverbs.FlowConfig{
		Priority: 65535, Port: 2, Flags: ibverbs.FlowDontTrap,
		Specs: []ibverbs.FlowSpec{
			&ibverbs.FlowIPv6{}, ibverbs.FlowTag(7), ibverbs.FlowCount{Counters: counters}, ibverbs.FlowHandle{Action: action},
		},
	}))(t)
	call := r.p.Only("ibv_create_flow")
	require.Equal(t, address(qp.Raw()), call.Arg(0))
	require.Equal(t, libibverbs.FlowAttr{
		Type: ibverbs.FlowNormal, Size: 20 + 88 + 12 + 16 + 16, Priority: 65535, NumOfSpecs: 4, Port: 2, Flags: 2,
	}, *fakelib.Struct[libibverbs.FlowAttr](call, 1))
	var count libibverbs.FlowSpecCounterAction
	var handle libibverbs.FlowSpecActionHandle
	copy(bytesOf(&count), specs(call)[88+12:])
	copy(bytesOf(&handle), specs(call)[88+12+16:])
	require.Equal(t, libibverbs.FlowSpecCounterAction{Type: 0x1003, Size: 16, Counters: counters.Raw()}, count)
	require.Equal(t, libibverbs.FlowSpecActionHandle{Type: 0x1002, Size: 16, Action: action.Raw()}, handle)
	require.Equal(t, qp, flow.QP())

	for _, parent := range []interface{ Close() error }{qp, action, counters} {
		var busy *ibverbs.BusyError
		require.ErrorAs(t, parent.Close(), &busy)
		require.Len(t, busy.Children, 1)
		require.Contains(t, busy.Children[0], "flow ")
	}
	require.Empty(t, r.p.Names())
	raw := address(flow.Raw())
	r.p.Next("ibv_destroy_flow").Returns(int64(syscall.EINVAL), 0)
	require.ErrorIs(t, flow.Close(), syscall.EINVAL)
	require.NoError(t, flow.Close())
	require.Equal(t, []int64{raw}, r.p.Calls()[1].Args())
}

func TestFlowTypes(t *testing.T) {
	r := open(t)
	qp := r.qp(ibverbs.QPTypeRawPacket)
	for flowType := ibverbs.FlowNormal; flowType <= ibverbs.FlowSniffer; flowType++ {
		flow := must(qp.CreateFlow(ibverbs.FlowConfig{Type: flowType, Flags: ibverbs.FlowEgress}))(t)
		require.Equal(t, libibverbs.FlowAttr{Type: flowType, Size: 20, Port: 1, Flags: 4},
			*fakelib.Struct[libibverbs.FlowAttr](r.p.Only("ibv_create_flow"), 1))
		require.NoError(t, flow.Close())
		r.p.Forget()
	}
}

// As many specs as there can be, of the largest size.
func TestLargestFlow(t *testing.T) {
	r := open(t)
	all := slices.Repeat([]ibverbs.FlowSpec{ibverbs.FlowIPv6{HopLimit: ibverbs.Exact[uint8](1)}}, ibverbs.MaxFlowSpecs)
	keep(t, must(r.qp(ibverbs.QPTypeRawPacket).CreateFlow(ibverbs.FlowConfig{Specs: all}))(t))
	require.Len(t, specs(r.p.Only("ibv_create_flow")), 880)
}

func TestCreateFlowFails(t *testing.T) {
	r := open(t)
	qp := r.qp(ibverbs.QPTypeRawPacket)
	other := keep(t, must(ibverbs.Open(""))(t))
	foreign := keep(t, must(other.CreateCounters())(t))
	foreignESP := keep(t, must(other.CreateESPAction(ibverbs.ESPConfig{Key: &ibverbs.AESGCM{Key: make([]byte, 16)}}))(t))
	r.p.Forget()
	one := func(s ibverbs.FlowSpec) ibverbs.FlowConfig { return ibverbs.FlowConfig{Specs: []ibverbs.FlowSpec{s}} }
	for want, config := range map[string]ibverbs.FlowConfig{
		"flow of 11 specs, more than 10":               {Specs: slices.Repeat([]ibverbs.FlowSpec{ibverbs.FlowDrop{}}, 11)},
		"flow of type FlowAttrType(4)":                 {Type: 4},
		"flow of priority -1":                          {Priority: -1},
		"flow of priority 65536":                       {Priority: 65536},
		"flow on port -1":                              {Port: -1},
		"flow on port 256":                             {Port: 256},
		"FlowDontTrap in a flow":                       {Type: ibverbs.FlowSniffer, Flags: ibverbs.FlowDontTrap},
		"ibv_create_flow: spec 0 is nil":               one(nil),
		"spec 0: counters of fake0 is not of the same": one(ibverbs.FlowCount{Counters: foreign}),
		"spec 0: ESP action for SPI 0x0 of fake0 is":   one(ibverbs.FlowHandle{Action: foreignESP}),
		"spec 0: Src is 1.2.3.4/32":                    one(ibverbs.FlowIPv6{Src: netip.MustParsePrefix("1.2.3.4/32")}),
		"spec 0: Dst is ::/0":                          one(ibverbs.FlowIPv4{Dst: netip.MustParsePrefix("::/0")}),
		"spec 0: Dst is fe80::/10":                     one(ibverbs.FlowIPv4Ext{Dst: netip.MustParsePrefix("fe80::/10")}),
		"spec 0: Src is invalid Prefix":                one(ibverbs.FlowIPv4{Src: netip.PrefixFrom(netip.MustParseAddr("1.2.3.4"), 33)}),
		"spec 0: Src is 10.0.0.7 outside of the mask 255.0.0.0": one(ibverbs.FlowIPv4{
			Src: netip.MustParsePrefix("10.0.0.7/8"), SrcMask: netip.MustParseAddr("255.0.0.0"),
		}),
		"spec 0: DstMask is ffff::":                    one(ibverbs.FlowIPv4Ext{Dst: netip.MustParsePrefix("1.2.3.4/32"), DstMask: netip.MustParseAddr("ffff::")}),
		"spec 0: SrcMask is ::ff%x":                    one(ibverbs.FlowIPv6{Src: netip.MustParsePrefix("::1/128"), SrcMask: netip.MustParseAddr("::ff%x")}),
		"spec 0: Dst is invalid Prefix":                one(ibverbs.FlowIPv4{DstMask: netip.MustParseAddr("255.0.0.255")}),
		"spec 0: DstPort is 80 outside of the mask 0":  one(ibverbs.FlowTCP{DstPort: ibverbs.FlowMatch[uint16]{Value: 80}}),
		"spec 0: VNI is 16777216 outside":              one(ibverbs.FlowVXLAN{VNI: ibverbs.Exact[uint32](1 << 24)}),
		"spec 0: FlowLabel is 1048576 outside":         one(ibverbs.FlowIPv6{FlowLabel: ibverbs.Exact[uint32](1 << 20)}),
		"Dst is 01:00:00:00:00:00 outside of the mask": one(ibverbs.FlowEthernet{Dst: ibverbs.FlowMatch[ibverbs.MAC]{Value: ibverbs.MAC{1}}}),
	} {
		_, err := qp.CreateFlow(config)
		require.ErrorIs(t, err, syscall.EINVAL, want)
		require.ErrorContains(t, err, want)
	}
	for _, s := range []ibverbs.FlowSpec{(*ibverbs.FlowTCP)(nil), (*ibverbs.FlowCount)(nil)} {
		_, err := qp.CreateFlow(one(s))
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	for _, s := range []ibverbs.FlowSpec{ibverbs.FlowCount{}, ibverbs.FlowHandle{}} {
		_, err := qp.CreateFlow(one(s))
		require.ErrorIs(t, err, os.ErrInvalid)
	}
	_, err := r.qp(ibverbs.QPTypeRC).CreateFlow(ibverbs.FlowConfig{})
	require.ErrorContains(t, err, "queue pair of type IBV_QPT_RC")
	require.Empty(t, r.p.Names())

	r.p.Next("ibv_create_flow").Returns(0, syscall.EOPNOTSUPP)
	_, err = qp.CreateFlow(ibverbs.FlowConfig{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "ibv_create_flow (QP ")
}

func bytesOf[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }
