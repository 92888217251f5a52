// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
)

var (
	here  = QPAddr{QPNum: 0x11, PSN: 0xa1b2c, GID: gidOf("192.0.2.1"), MTU: 3, ReadDepth: 16, Port: 1, GIDIndex: 1}
	there = QPAddr{QPNum: 0x12, PSN: 0xffffff, GID: gidOf("192.0.2.2"), MTU: 5, ReadDepth: 4, Port: 2, GIDIndex: 3}
)

const hereText = "qpn=0x000011 psn=0x0a1b2c qkey=0x00000000 lid=0 gid=0000:0000:0000:0000:0000:ffff:c000:0201 " +
	"mtu=1024 reads=16 port=1 gidindex=1"

func TestQPEndpointText(t *testing.T) {
	require.Equal(t, hereText, here.String())
	text[QPAddr](t, []QPAddr{here, there, {QPNum: 1, LID: 65535, MTU: 1, Port: 255, GIDIndex: 255, QKey: 1<<32 - 1, ReadDepth: 255}})
	got, err := ParseQPAddr("  qpn=17 psn=0xA1B2C  qkey=0 lid=0 gid=192.0.2.1\tmtu=1024 reads=16 port=1 gidindex=0x1\n")
	require.NoError(t, err)
	require.Equal(t, here, got)
}

func TestQPEndpointThatIsWrong(t *testing.T) {
	for name, tt := range map[string]struct{ old, new, want string }{
		"empty":             {hereText, "", `"" is not a QP address: it has 0 fields, not 9`},
		"too long":          {"qpn", strings.Repeat("x", 300), `x..." is not a QP address: field 1 is not qpn=`},
		"a field too many":  {"port=1", "port=1 port=1", "it has 10 fields, not 9"},
		"another order":     {"lid=0", "psn=0", "field 4 is not lid="},
		"no number":         {"psn=0x0a1b2c", "psn=next", `psn: strconv.ParseUint: parsing "next": invalid syntax`},
		"negative":          {"port=1", "port=-1", "port: strconv.ParseUint"},
		"LID of 17 bits":    {"lid=0", "lid=65536", "lid: strconv.ParseUint: parsing \"65536\": value out of range"},
		"no GID":            {"gid=0000:", "gid=", "gid: "},
		"no MTU":            {"mtu=1024", "mtu=1000", `mtu: MTU: no value is called "1000"`},
		"unknown MTU":       {"mtu=1024", "mtu=MTU(6)", "ParseQPAddr: address: MTU is 6, not from MTU256 (1) to MTU4096 (5)"},
		"MTU 0":             {"mtu=1024", "mtu=0", "ParseQPAddr: address: MTU is 0, not from MTU256 (1) to MTU4096 (5)"},
		"QP number 0":       {"qpn=0x000011", "qpn=0", "ParseQPAddr: address: queue pair number is 0x0, not from 0x1 to 0xffffff"},
		"QP number":         {"qpn=0x000011", "qpn=0x1000000", "ParseQPAddr: address: queue pair number is 0x1000000, not from 0x1 to 0xffffff"},
		"sequence number":   {"psn=0x0a1b2c", "psn=0x1000000", "ParseQPAddr: address: packet sequence number is 0x1000000, more than 0xffffff"},
		"no address":        {"ffff:c000:0201", "0000:0000:0000", "ParseQPAddr: address: both LID and GID are zero"},
		"port 0":            {"port=1", "port=0", "ParseQPAddr: address: port is 0, not from 1 to 255"},
		"port 256":          {"port=1", "port=256", "ParseQPAddr: address: port is 256, not from 1 to 255"},
		"GID index":         {"gidindex=1", "gidindex=256", "ParseQPAddr: address: GID index is 256, not from 0 to 255"},
		"too many reads":    {"reads=16", "reads=256", "ParseQPAddr: address: read depth is 256, not from 0 to 255"},
		"reads of 33 bits":  {"reads=16", "reads=4294967296", "reads: strconv.ParseUint"},
		"GID with a zone":   {"gid=0000:0000:0000:0000:0000:ffff:c000:0201", "gid=fe80::1%eth0", "is not a GID"},
		"name without sign": {"port=1", "port1", "field 8 is not port="},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseQPAddr(strings.Replace(hereText, tt.old, tt.new, 1))
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestQPEndpointJSON(t *testing.T) {
	b, err := json.Marshal(here)
	require.NoError(t, err)
	require.JSONEq(t, `{"QPNum":17,"PSN":662316,"QKey":0,"LID":0,"GID":"0000:0000:0000:0000:0000:ffff:c000:0201",
		"MTU":"1024","ReadDepth":16,"Port":1,"GIDIndex":1}`, string(b))
	var got QPAddr
	require.NoError(t, json.Unmarshal(b, &got))
	require.Equal(t, here, got)
	for _, bad := range []string{
		`{}`, `"x"`, `{"QPNum":-1}`, `{"QPN":17,"MTU":"1024","Port":1}`,
		strings.Replace(string(b), `"ReadDepth":16`, `"ReadDepth":-1`, 1),
	} {
		kept := there
		require.Error(t, json.Unmarshal([]byte(`[`+bad+`]`), &[]*QPAddr{&kept}), bad)
		require.Equal(t, there, kept)
	}
}

func FuzzParseQPEndpoint(f *testing.F) {
	f.Add(hereText)
	f.Add(there.String())
	f.Fuzz(func(t *testing.T, s string) {
		e, err := ParseQPAddr(s)
		if err != nil {
			return
		}
		again, err := ParseQPAddr(e.String())
		require.NoError(t, err)
		require.Equal(t, e, again)
		b, err := json.Marshal(e)
		require.NoError(t, err)
		var back QPAddr
		require.NoError(t, json.Unmarshal(b, &back))
		require.Equal(t, e, back)
	})
}

func FuzzQPEndpointJSON(f *testing.F) {
	b, err := json.Marshal(here)
	require.NoError(f, err)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var e QPAddr
		if e.UnmarshalJSON(b) == nil {
			require.NoError(t, e.check())
			again, err := ParseQPAddr(e.String())
			require.NoError(t, err)
			require.Equal(t, e, again)
		}
	})
}

func TestConnectSteps(t *testing.T) {
	ethernet := PortAttr{LinkLayer: link.Ethernet}
	o, err := ConnectConfig{}.complete(QPTypeRC, 4)
	require.NoError(t, err)
	steps := connectSteps(QPTypeRC, here, there, ethernet, o)
	require.Len(t, steps, 3)
	require.Equal(t, libibverbs.QpAttr{
		QpState: QPStateInit, PortNum: 1,
		QpAccessFlags: AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic,
	}, steps[0].attr)
	av := libibverbs.AhAttr{PortNum: 1, IsGlobal: 1, Grh: libibverbs.GlobalRoute{SgidIndex: 1, HopLimit: 64}}
	*av.Grh.Dgid.Raw() = there.GID
	require.Equal(t, libibverbs.QpAttr{
		QpState: QPStateRTR, AhAttr: av, DestQpNum: 0x12, RqPsn: 0xffffff, PathMtu: libibverbs.IBV_MTU_1024,
		MaxDestRdAtomic: 16, MinRnrTimer: 12,
	}, steps[1].attr)
	require.Equal(t, libibverbs.QpAttr{
		QpState: QPStateRTS, SqPsn: 0xa1b2c, Timeout: 14, RetryCnt: 6, RnrRetry: 7, MaxRdAtomic: 4,
	}, steps[2].attr)

	o, err = ConnectConfig{PKeyIndex: 2, TrafficClass: 9, FlowLabel: 8, HopLimit: 7, MaxMTU: 2, Access: AccessLocalWrite}.complete(QPTypeUC, 0)
	require.NoError(t, err)
	steps = connectSteps(QPTypeUC, here, there, ethernet, o)
	require.Equal(t, libibverbs.QpAttr{QpState: QPStateInit, PortNum: 1, PkeyIndex: 2, QpAccessFlags: 1}, steps[0].attr)
	av.Grh.TrafficClass, av.Grh.FlowLabel, av.Grh.HopLimit = 9, 8, 7
	require.Equal(t, libibverbs.QpAttr{
		QpState: QPStateRTR, AhAttr: av, DestQpNum: 0x12, RqPsn: 0xffffff, PathMtu: libibverbs.IBV_MTU_512,
	}, steps[1].attr)
	require.Equal(t, libibverbs.QpAttr{QpState: QPStateRTS, SqPsn: 0xa1b2c}, steps[2].attr)
	require.Zero(t, steps[2].mask&libibverbs.IBV_QP_TIMEOUT)
}

func TestNeedsGRH(t *testing.T) {
	ib := PortAttr{LinkLayer: link.InfiniBand}
	a := QPAddr{LID: 1, GID: gidOf("fe80::1")}
	for name, tt := range map[string]struct {
		peer QPAddr
		port PortAttr
		want bool
	}{
		"same subnet":       {QPAddr{LID: 2, GID: gidOf("fe80::2")}, ib, false},
		"peer without GID":  {QPAddr{LID: 2}, ib, false},
		"another subnet":    {QPAddr{LID: 2, GID: gidOf("fec0::2")}, ib, true},
		"peer without LID":  {QPAddr{GID: gidOf("fe80::2")}, ib, true},
		"port that asks so": {QPAddr{LID: 2, GID: gidOf("fe80::2")}, PortAttr{LinkLayer: link.InfiniBand, GRHRequired: true}, true},
		"RoCE":              {QPAddr{GID: gidOf("fe80::2")}, PortAttr{LinkLayer: link.Ethernet}, true},
	} {
		require.Equal(t, tt.want, a.needsGRH(tt.peer, tt.port), name)
		av := a.address(tt.peer, tt.port, ConnectConfig{SL: 3})
		require.Equal(t, tt.peer.LID, av.Dlid)
		require.EqualValues(t, 3, av.Sl)
		require.Equal(t, tt.want, av.IsGlobal == 1)
	}
}

func TestConnectOptions(t *testing.T) {
	v, err := ConnectConfig{
		Timeout: time.Second, RetryCount: -1, RNRRetryCount: -1, MinRNRTimer: time.Millisecond, ReadDepth: -1,
	}.complete(QPTypeRC, 255)
	require.NoError(t, err)
	require.Equal(t, []uint8{18, 0, 0, 14, 0}, []uint8{v.timeout, v.retryCount, v.rnrRetryCount, v.rnrTimer, v.readDepth})
	v, err = ConnectConfig{RetryCount: 2, RNRRetryCount: 6, ReadDepth: 200}.complete(QPTypeRC, 255)
	require.NoError(t, err)
	require.Equal(t, []uint8{14, 2, 6, 12, 200}, []uint8{v.timeout, v.retryCount, v.rnrRetryCount, v.rnrTimer, v.readDepth})
	v, err = ConnectConfig{}.complete(QPTypeUC, 0)
	require.NoError(t, err)
	require.Equal(t, AccessRemoteWrite, v.Access)

	for want, o := range map[string]ConnectConfig{
		"MaxMTU is 9, not from MTU256 (1) to MTU4096 (5)":                       {MaxMTU: 9},
		"SL is 16, more than 15":                                                {SL: 16},
		"FlowLabel is 0x100000, more than 0xfffff":                              {FlowLabel: 1 << 20},
		"RetryCount is 8, more than 7":                                          {RetryCount: 8},
		"RNRRetryCount is 8, more than 7":                                       {RNRRetryCount: 8},
		"ReadDepth is 5, more than 4, which is the most that both ends support": {ReadDepth: 5},
		"Timeout is -1ns and MinRNRTimer is 0s; neither may be negative":        {Timeout: -1},
		"timeout is 3h0m0s, more than 2h26m36.093022208s":                       {Timeout: 3 * time.Hour},
		"RNR timer is 1s, not from 0 to 655.36ms":                               {MinRNRTimer: time.Second},
	} {
		_, err := o.complete(QPTypeRC, 4)
		require.EqualError(t, err, want)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	_, err = ConnectConfig{}.complete(QPTypeUD, 4)
	require.EqualError(t, err, "the queue pair is of type IBV_QPT_UD, neither IBV_QPT_RC nor IBV_QPT_UC")
}

// A queue pair that was opened in an XRC domain has no protection domain.
func TestEndpointWithoutPD(t *testing.T) {
	qp := &QP{device: &Device{}, num: here.QPNum}
	qp.object.InitUnlisted("opened QP")
	_, err := qp.Addr(QPAddrConfig{})
	require.ErrorIs(t, err, os.ErrInvalid)
	require.ErrorIs(t, qp.ConnectTo(here, there, ConnectConfig{}), os.ErrInvalid)
}
