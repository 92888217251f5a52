// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"runtime"
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
	r.p.Next("ibv_destroy_flow", fakelib.Returns(int64(syscall.EINVAL), 0))
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
		"the rule has 11 specs, more than 10":                {Specs: slices.Repeat([]flow.Spec{flow.Drop{}}, 11)},
		"Config.Type is FlowAttrType(4), more than":          {Type: 4},
		"Config.Priority is -1, not from 0 to 65535":         {Priority: -1},
		"Config.Priority is 65536, not from 0 to 65535":      {Priority: 65536},
		"Config.Port is -1, not from 0 to 255":               {Port: -1},
		"Config.Port is 256, not from 0 to 255":              {Port: 256},
		", but DontTrap needs":                               {Type: flow.Sniffer, Flags: flow.DontTrap},
		"ibv_create_flow: spec 0 is nil":                     one(nil),
		"spec 0: counters of fake0 belongs to another":       one(flow.Count{Counters: foreign}),
		"spec 0: ESP action for SPI 0x0 of fake0 belongs to": one(flow.Apply{Action: foreignESP}),
		"spec 0: Src is 1.2.3.4/32":                          one(flow.IPv6{Src: netip.MustParsePrefix("1.2.3.4/32")}),
		"spec 0: Dst is ::/0":                                one(flow.IPv4{Dst: netip.MustParsePrefix("::/0")}),
		"spec 0: Dst is fe80::/10":                           one(flow.IPv4Ext{Dst: netip.MustParsePrefix("fe80::/10")}),
		"spec 0: Src is invalid Prefix":                      one(flow.IPv4{Src: netip.PrefixFrom(netip.MustParseAddr("1.2.3.4"), 33)}),
		"spec 0: Src is 10.0.0.7, which has bits outside the mask 255.0.0.0": one(flow.IPv4{
			Src: netip.MustParsePrefix("10.0.0.7/8"), SrcMask: netip.MustParseAddr("255.0.0.0"),
		}),
		"spec 0: DstMask is ffff::":                                 one(flow.IPv4Ext{Dst: netip.MustParsePrefix("1.2.3.4/32"), DstMask: netip.MustParseAddr("ffff::")}),
		"spec 0: SrcMask is ::ff%x":                                 one(flow.IPv6{Src: netip.MustParsePrefix("::1/128"), SrcMask: netip.MustParseAddr("::ff%x")}),
		"spec 0: Dst is invalid Prefix":                             one(flow.IPv4{DstMask: netip.MustParseAddr("255.0.0.255")}),
		"spec 0: DstPort is 80, which has bits outside the mask 0":  one(flow.TCP{DstPort: flow.Match[uint16]{Value: 80}}),
		"spec 0: VNI is 16777216, which has bits outside":           one(flow.VXLAN{VNI: flow.Exact[uint32](1 << 24)}),
		"spec 0: FlowLabel is 1048576, which has bits outside":      one(flow.IPv6{FlowLabel: flow.Exact[uint32](1 << 20)}),
		"Dst is 01:00:00:00:00:00, which has bits outside the mask": one(flow.Ethernet{Dst: flow.Match[flow.MAC]{Value: flow.MAC{1}}}),
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
	require.ErrorContains(t, err, "queue pair is of type IBV_QPT_RC")
	require.Empty(t, r.p.Names())

	r.p.Next("ibv_create_flow", fakelib.Returns(0, syscall.EOPNOTSUPP))
	_, err = flow.Create(qp, flow.Config{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "ibv_create_flow (QP ")
}

// A device that was removed answers EIO to every call: that counts as closed,
// while an EIO of one that is there does not.
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
			r.p.Next(tt.call, fakelib.Returns(int64(syscall.EIO), 0))
			require.ErrorIs(t, o.Close(), syscall.EIO)
			r.p.Next(tt.call, fakelib.Returns(int64(syscall.EIO), 0))
			r.p.Next("ibv_create_comp_channel", fakelib.Returns(0, syscall.EIO))
			require.NoError(t, o.Close())
			require.NoError(t, tt.destroy(o))
		})
	}
}

func bytesOf[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }

func TestCounters(t *testing.T) {
	r := open(t)
	counters := must(flow.CreateCounters(r.c))(t)
	call := r.p.Only("ibv_create_counters")
	require.Equal(t, address(r.c.Raw()), call.Arg(0))
	require.Equal(t, libibverbs.CountersInitAttr{}, *fakelib.Struct[libibverbs.CountersInitAttr](call, 1))

	require.NoError(t, counters.Attach(3, flow.CounterBytes, nil))
	call = r.p.Only("ibv_attach_counters_point_flow")
	require.Equal(t, []int64{address(counters.Raw()), 0}, []int64{call.Arg(0), call.Arg(2)})
	require.Equal(t, libibverbs.CounterAttachAttr{CounterDesc: libibverbs.IBV_COUNTER_BYTES, Index: 3},
		*fakelib.Struct[libibverbs.CounterAttachAttr](call, 1))

	for cached, flags := range map[bool]int64{false: 0, true: 1} {
		read := [2]uint64{1<<63 + 2, 7}
		r.p.Next("ibv_read_counters", fakelib.Writes(1, 0, fakelib.Bytes(&read)))
		values := make([]uint64, 3)
		require.NoError(t, counters.Read(values, cached))
		require.Equal(t, []uint64{1<<63 + 2, 7, 0}, values)
		call = r.p.Only("ibv_read_counters")
		require.Equal(t, []int64{address(counters.Raw()), 3, flags}, []int64{call.Arg(0), call.Arg(2), call.Arg(3)})
	}
	require.NoError(t, counters.Read(nil, false))
	require.Empty(t, r.p.Names())

	raw := address(counters.Raw())
	require.NoError(t, counters.Close())
	require.Equal(t, []int64{raw}, r.p.Only("ibv_destroy_counters").Args())
	require.ErrorIs(t, counters.Read(make([]uint64, 1), false), os.ErrClosed)
}

// A rule that exists already depends on counters that are attached to it.
func TestCountersOfRule(t *testing.T) {
	r := open(t)
	counters := keep(t, must(flow.CreateCounters(r.c))(t))
	rule := keep(t, must(flow.Create(r.qp(ibverbs.QPTypeRawPacket), flow.Config{}))(t))
	r.p.Forget()
	require.NoError(t, counters.Attach(0, flow.CounterPackets, rule))
	require.Equal(t, address(rule.Raw()), r.p.Only("ibv_attach_counters_point_flow").Arg(2))
	require.ErrorIs(t, counters.Close(), syscall.EBUSY)
	require.Empty(t, r.p.Names())
	require.NoError(t, rule.Close())
	require.NoError(t, counters.Close())
}

func TestCountersFail(t *testing.T) {
	r := open(t)
	counters := keep(t, must(flow.CreateCounters(r.c))(t))
	foreign := keep(t, must(flow.CreateCounters(keep(t, must(ibverbs.Open(""))(t))))(t))
	rule := keep(t, must(flow.Create(r.qp(ibverbs.QPTypeRawPacket), flow.Config{}))(t))
	r.p.Forget()
	require.ErrorIs(t, counters.Attach(-1, flow.CounterBytes, nil), syscall.EINVAL)
	require.ErrorIs(t, counters.Attach(0, flow.CounterBytes, &flow.Rule{}), os.ErrInvalid)
	require.ErrorContains(t, foreign.Attach(0, flow.CounterBytes, rule), "belongs to another open device")
	require.Empty(t, r.p.Names())

	r.p.Next("ibv_attach_counters_point_flow", fakelib.Returns(int64(syscall.ENOTSUP), 0))
	err := counters.Attach(1, flow.CounterBytes, rule)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "(IBV_COUNTER_BYTES at index 1 of counters of fake0)")
	r.p.Next("ibv_read_counters", fakelib.Returns(int64(syscall.EIO), 0))
	require.ErrorIs(t, counters.Read(make([]uint64, 1), false), syscall.EIO)
	r.p.Next("ibv_destroy_counters", fakelib.Returns(int64(syscall.EBUSY), 0))
	require.ErrorIs(t, counters.Close(), syscall.EBUSY, "no BusyError: the rule does not depend on them")
	r.p.Next("ibv_create_counters", fakelib.Returns(0, syscall.EOPNOTSUPP))
	_, err = flow.CreateCounters(r.c)
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

// esp is what C saw of an ESP action.
type esp struct {
	attr   libibverbs.FlowActionEspAttr // without its pointers
	esp    libibverbs.FlowActionEsp
	keymat []libibverbs.FlowActionEspKeymatAesGcm
	replay []libibverbs.FlowActionEspReplayBmp
}

func espOf(call fakelib.Call) (e esp) {
	attr := fakelib.Struct[libibverbs.FlowActionEspAttr](call, 1)
	e.esp = fakelib.Follow[libibverbs.FlowActionEsp](call, &attr.EspAttr, 1)[0]
	if attr.KeymatPtr != nil {
		e.keymat = fakelib.Follow[libibverbs.FlowActionEspKeymatAesGcm](call, &attr.KeymatPtr, 1)
	}
	if attr.ReplayPtr != nil {
		e.replay = fakelib.Follow[libibverbs.FlowActionEspReplayBmp](call, &attr.ReplayPtr, 1)
	}
	e.attr = *attr
	return e
}

func TestESPAction(t *testing.T) {
	r := open(t)
	key := []byte("0123456789abcdefghijklmnopqrstuv")
	a := must(flow.CreateESPAction(r.c, flow.ESPConfig{
		SPI: 0x1234, Seq: 5, TFCPad: 6, Flags: flow.ESPTransport | flow.ESPEncrypt, HardLimitPackets: 1 << 40,
		Key:          &flow.AESGCM{Key: key, Salt: 0xdeadbeef, IV: 1<<63 + 1, ICVLen: 12},
		ReplayWindow: 64, ESN: 9, UseESN: true,
	}))(t)
	runtime.GC() // what was pinned is not needed any more
	call := r.p.Only("ibv_create_flow_action_esp")
	require.Equal(t, address(r.c.Raw()), call.Arg(0))
	keymat := libibverbs.FlowActionEspKeymatAesGcm{Iv: 1<<63 + 1, Salt: 0xdeadbeef, IcvLen: 12, KeyLen: 32}
	copy(bytesOf(&keymat.AesKey), key)
	require.Equal(t, esp{
		attr: libibverbs.FlowActionEspAttr{
			KeymatProto: libibverbs.IBV_FLOW_ACTION_ESP_KEYMAT_AES_GCM, KeymatLen: 56,
			ReplayProto: libibverbs.IBV_FLOW_ACTION_ESP_REPLAY_BMP, ReplayLen: 4, CompMask: 1, Esn: 9,
		},
		esp:    libibverbs.FlowActionEsp{Spi: 0x1234, Seq: 5, TfcPad: 6, Flags: 6, HardLimitPkts: 1 << 40},
		keymat: []libibverbs.FlowActionEspKeymatAesGcm{keymat},
		replay: []libibverbs.FlowActionEspReplayBmp{{Size: 64}},
	}, espOf(call))

	require.NoError(t, a.ModifyESP(flow.ESPConfig{Flags: flow.ESPNewESNWindow, ESN: 10, UseESN: true}))
	call = r.p.Only("ibv_modify_flow_action_esp")
	require.Equal(t, address(a.Raw()), call.Arg(0))
	require.Equal(t, esp{
		attr: libibverbs.FlowActionEspAttr{CompMask: 1, Esn: 10},
		esp:  libibverbs.FlowActionEsp{Flags: 8},
	}, espOf(call))
	r.p.Next("ibv_modify_flow_action_esp", fakelib.Returns(int64(syscall.EOPNOTSUPP), 0))
	err := a.ModifyESP(flow.ESPConfig{SPI: 1})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "ibv_modify_flow_action_esp (ESP action for SPI 0x1234 of fake0)")
	r.p.Forget()

	raw := address(a.Raw())
	r.p.Next("ibv_destroy_flow_action", fakelib.Returns(int64(syscall.EBUSY), 0))
	require.ErrorIs(t, a.Close(), syscall.EBUSY)
	require.NoError(t, a.Close())
	require.Equal(t, []int64{raw}, r.p.Calls()[1].Args())
}

func TestESPKeys(t *testing.T) {
	r := open(t)
	for _, size := range []int{16, 24, 32} {
		a := must(flow.CreateESPAction(r.c, flow.ESPConfig{Key: &flow.AESGCM{Key: make([]byte, size)}}))(t)
		e := espOf(r.p.Only("ibv_create_flow_action_esp"))
		require.Equal(t, []libibverbs.FlowActionEspKeymatAesGcm{{IcvLen: 16, KeyLen: uint32(size)}}, e.keymat)
		require.Equal(t, libibverbs.FlowActionEspAttr{KeymatLen: 56}, e.attr)
		require.Nil(t, e.replay)
		require.NoError(t, a.Close())
		r.p.Forget()
	}
}

func TestESPActionFails(t *testing.T) {
	r := open(t)
	good := flow.AESGCM{Key: make([]byte, 16)}
	a := keep(t, must(flow.CreateESPAction(r.c, flow.ESPConfig{Key: &good}))(t))
	r.p.Forget()
	for want, config := range map[string]flow.ESPConfig{
		"fake0): ESPConfig: Key.Key has 0 bytes, not 16, 24 or 32":  {Key: &flow.AESGCM{}},
		"fake0): ESPConfig: Key.Key has 33 bytes, not 16, 24 or 32": {Key: &flow.AESGCM{Key: make([]byte, 33)}},
		"fake0): ESPConfig: Key.ICVLen is 10, not 0, 8, 12 or 16":   {Key: &flow.AESGCM{Key: good.Key, ICVLen: 10}},
		"fake0): ESPConfig: ReplayWindow is -1, not from 0 to":      {Key: &good, ReplayWindow: -1},
	} {
		_, err := flow.CreateESPAction(r.c, config)
		for _, err := range []error{err, a.ModifyESP(config)} {
			require.ErrorIs(t, err, syscall.EINVAL)
			require.ErrorContains(t, err, want)
		}
	}
	_, err := flow.CreateESPAction(r.c, flow.ESPConfig{})
	require.ErrorContains(t, err, "fake0): ESPConfig: Key is nil")
	require.Empty(t, r.p.Names())
	r.p.Next("ibv_create_flow_action_esp", fakelib.Returns(0, syscall.EOPNOTSUPP))
	_, err = flow.CreateESPAction(r.c, flow.ESPConfig{Key: &good})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

func (r *rig) table() *flow.IndirectionTable {
	r.t.Helper()
	table := keep(r.t, must(flow.CreateIndirectionTable(r.c, []*flow.WQ{r.wq()}))(r.t))
	r.p.Forget()
	return table
}

func TestIndirectionTable(t *testing.T) {
	r := open(t)
	a, b := r.wq(), r.wq()
	table := must(flow.CreateIndirectionTable(r.c, []*flow.WQ{a, b, b, a}))(t)
	call := r.p.Only("ibv_create_rwq_ind_table")
	require.Equal(t, address(r.c.Raw()), call.Arg(0))
	attr := fakelib.Struct[libibverbs.RwqIndTableInitAttr](call, 1)
	require.Equal(t, []*libibverbs.Wq{a.Raw(), b.Raw(), b.Raw(), a.Raw()}, fakelib.Follow[*libibverbs.Wq](call, &attr.IndTbl, 4))
	require.Equal(t, libibverbs.RwqIndTableInitAttr{LogIndTblSize: 2}, *attr)
	require.Equal(t, int(table.Raw().IndTblNum), table.Num())
	require.NotZero(t, table.Num())
	require.ErrorIs(t, a.Close(), syscall.EBUSY)
	require.Empty(t, r.p.Names())

	raw := address(table.Raw())
	require.NoError(t, table.Close())
	require.Equal(t, []int64{raw}, r.p.Only("ibv_destroy_rwq_ind_table").Args())

	one := must(flow.CreateIndirectionTable(r.c, []*flow.WQ{a}))(t)
	require.Zero(t, fakelib.Struct[libibverbs.RwqIndTableInitAttr](r.p.Only("ibv_create_rwq_ind_table"), 1).LogIndTblSize)
	require.NoError(t, one.Close())
}

func TestIndirectionTableFails(t *testing.T) {
	r := open(t)
	wq := r.wq()
	other := keep(t, must(ibverbs.Open(""))(t))
	r.p.Forget()
	for _, n := range []int{0, 3, 5, 6, 7} {
		wqs := make([]*flow.WQ, n)
		for i := range wqs {
			wqs[i] = wq
		}
		_, err := flow.CreateIndirectionTable(r.c, wqs)
		require.ErrorIs(t, err, syscall.EINVAL, n)
		require.ErrorContains(t, err, "not a power of two", n)
	}
	_, err := flow.CreateIndirectionTable(r.c, []*flow.WQ{wq, nil})
	require.ErrorIs(t, err, os.ErrInvalid)
	_, err = flow.CreateIndirectionTable(other, []*flow.WQ{wq})
	require.ErrorContains(t, err, "belongs to another open device")
	require.Empty(t, r.p.Names())

	r.p.Next("ibv_create_rwq_ind_table", fakelib.Returns(0, syscall.EOPNOTSUPP))
	_, err = flow.CreateIndirectionTable(r.c, []*flow.WQ{wq})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

func TestRSSQP(t *testing.T) {
	r := open(t)
	table := r.table()
	key := bytes.Repeat([]byte{0x6d, 0x5a}, flow.RSSKeyLen/2)
	mask := libibverbs.IBV_QP_INIT_ATTR_PD | libibverbs.IBV_QP_INIT_ATTR_IND_TABLE | libibverbs.IBV_QP_INIT_ATTR_RX_HASH
	for _, tt := range []struct {
		name   string
		config flow.RSSConfig
		want   libibverbs.QpInitAttrEx
	}{
		{"least", flow.RSSConfig{}, libibverbs.QpInitAttrEx{
			QpType: ibverbs.QPTypeRawPacket, CompMask: mask,
			RxHashConf: libibverbs.RxHashConf{RxHashFunction: 1, RxHashKeyLen: 40},
		}},
		{"all", flow.RSSConfig{
			Type: ibverbs.QPTypeUD, Function: flow.RSSToeplitz,
			Fields: flow.RSSSrcIPv6 | flow.RSSDstPortUDP | flow.RSSInner,
			Flags:  libibverbs.IBV_QP_CREATE_CVLAN_STRIPPING,
		}, libibverbs.QpInitAttrEx{
			QpType: ibverbs.QPTypeUD, CompMask: mask | libibverbs.IBV_QP_INIT_ATTR_CREATE_FLAGS, CreateFlags: 1 << 9,
			RxHashConf: libibverbs.RxHashConf{RxHashFunction: 1, RxHashKeyLen: 40, RxHashFieldsMask: 0x80000084},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.config.Table, tt.config.Key = table, key
			tt.want.Pd, tt.want.RwqIndTbl = r.pd.Raw(), table.Raw()
			qp := must(flow.CreateRSSQP(r.pd, tt.config))(t)
			call := r.p.Only("ibv_create_qp_ex")
			require.Equal(t, address(r.c.Raw()), call.Arg(0))
			attr := fakelib.Struct[libibverbs.QpInitAttrEx](call, 1)
			require.Equal(t, key, fakelib.Follow[byte](call, &attr.RxHashConf.RxHashKey, 40))
			require.Equal(t, tt.want, *attr)
			require.Equal(t, tt.want.QpType, qp.Type())
			require.Equal(t, r.pd, qp.PD())
			require.ErrorIs(t, table.Close(), syscall.EBUSY)
			raw := address(qp.Raw())
			require.NoError(t, qp.Close())
			require.Equal(t, []int64{raw}, r.p.Only("ibv_destroy_qp").Args())
		})
	}
}

func TestRSSQPFails(t *testing.T) {
	r := open(t)
	key := make([]byte, flow.RSSKeyLen)
	table := r.table()
	other := keep(t, must(keep(t, must(ibverbs.Open(""))(t)).AllocPD())(t))
	r.p.Forget()
	for _, tt := range []struct {
		config flow.RSSConfig
		want   string
	}{
		{flow.RSSConfig{Table: table}, "Key has 0 bytes, not 40"},
		{flow.RSSConfig{Table: table, Key: key[1:]}, "Key has 39 bytes, not 40"},
		{flow.RSSConfig{Table: table, Key: make([]byte, 256)}, "Key has 256 bytes, not 40"},
		{flow.RSSConfig{Table: table, Key: key, Type: ibverbs.QPTypeRC}, "Type is IBV_QPT_RC, neither"},
		{flow.RSSConfig{Table: table, Key: key, Function: 2}, "Function is 0x2, not RSSToeplitz"},
		{flow.RSSConfig{Table: table, Key: key, Function: 0x101}, "Function is IBV_RX_HASH_FUNC_TOEPLITZ|0x100, not RSSToeplitz"},
	} {
		_, err := flow.CreateRSSQP(r.pd, tt.config)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, tt.want)
	}
	_, err := flow.CreateRSSQP(r.pd, flow.RSSConfig{Key: key})
	require.ErrorIs(t, err, os.ErrInvalid)
	_, err = flow.CreateRSSQP(other, flow.RSSConfig{Table: table, Key: key})
	require.ErrorContains(t, err, "belongs to another open device")
	require.Empty(t, r.p.Names())

	r.p.Next("ibv_create_qp_ex", fakelib.Returns(0, syscall.EOPNOTSUPP))
	_, err = flow.CreateRSSQP(r.pd, flow.RSSConfig{Table: table, Key: key})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}
