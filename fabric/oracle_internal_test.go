// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibmad"
	"github.com/verbena-go/verbena/ibverbs/link"
)

// oracle reads fields as libibmad does.
type oracle struct {
	t *testing.T
	a *attribute
}

// newOracle skips the test where there is no libibmad, and fails instead if
// VERBENA_REQUIRE_IBSIM is 1: ibsim needs the library as well.
func newOracle(t *testing.T) oracle {
	t.Helper()
	if _, err := libibmad.FieldName(libibmad.IB_NODE_TYPE_F); err != nil {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.NotEqual(t, "1", os.Getenv("VERBENA_REQUIRE_IBSIM"), err)
		t.Skip(err)
	}
	return oracle{t: t, a: &attribute{}}
}

// has reports whether the installed library is new enough to know a field.
func (o oracle) has(field libibmad.MADFIELDS) bool {
	name, err := libibmad.FieldName(field)
	require.NoError(o.t, err)
	return name != ""
}

// get decodes a field of at most 32 bits.
func (o oracle) get(field libibmad.MADFIELDS) uint64 {
	var v uint32
	require.NoError(o.t, libibmad.DecodeField(&o.a[0], field, unsafe.Pointer(&v)))
	return uint64(v)
}

// get64 decodes a field of 64 bits.
func (o oracle) get64(field libibmad.MADFIELDS) uint64 {
	var v uint64
	require.NoError(o.t, libibmad.DecodeField(&o.a[0], field, unsafe.Pointer(&v)))
	return v
}

// random fills the attribute with random bytes.
func (o oracle) random(rng *rand.Rand) {
	for i := range o.a {
		o.a[i] = byte(rng.Uint32())
	}
}

// bit returns 1 for true.
func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

const rounds = 200

func TestNodeAndSwitchInfoAgainstLibibmad(t *testing.T) {
	o, rng := newOracle(t), rand.New(rand.NewPCG(1, 1))
	for range rounds {
		o.random(rng)
		n, s := decodeNodeInfo(o.a), decodeSwitchInfo(o.a)
		for field, got := range map[libibmad.MADFIELDS]uint64{
			libibmad.IB_NODE_BASE_VERS_F: uint64(n.BaseVersion), libibmad.IB_NODE_CLASS_VERS_F: uint64(n.ClassVersion),
			libibmad.IB_NODE_TYPE_F: uint64(n.Type), libibmad.IB_NODE_NPORTS_F: uint64(n.NumPorts),
			libibmad.IB_NODE_PARTITION_CAP_F: uint64(n.PartitionCap), libibmad.IB_NODE_DEVID_F: uint64(n.DeviceID),
			libibmad.IB_NODE_REVISION_F: uint64(n.Revision), libibmad.IB_NODE_LOCAL_PORT_F: uint64(n.LocalPort),
			libibmad.IB_NODE_VENDORID_F: uint64(n.VendorID),

			libibmad.IB_SW_LINEAR_FDB_CAP_F: uint64(s.LinearFDBCap), libibmad.IB_SW_RANDOM_FDB_CAP_F: uint64(s.RandomFDBCap),
			libibmad.IB_SW_MCAST_FDB_CAP_F: uint64(s.MulticastFDBCap), libibmad.IB_SW_LINEAR_FDB_TOP_F: uint64(s.LinearFDBTop),
			libibmad.IB_SW_DEF_PORT_F: uint64(s.DefaultPort), libibmad.IB_SW_DEF_MCAST_PRIM_F: uint64(s.DefaultMulticastPort),
			libibmad.IB_SW_DEF_MCAST_NOT_PRIM_F: uint64(s.DefaultMulticastOther), libibmad.IB_SW_LIFE_TIME_F: uint64(s.LifeTime),
			libibmad.IB_SW_STATE_CHANGE_F: bit(s.PortStateChange), libibmad.IB_SW_OPT_SLTOVL_MAPPING_F: uint64(s.OptimizedSLtoVLMapping),
			libibmad.IB_SW_LIDS_PER_PORT_F: uint64(s.LIDsPerPort), libibmad.IB_SW_PARTITION_ENFORCE_CAP_F: uint64(s.PartitionEnforcement),
			libibmad.IB_SW_PARTITION_ENF_INB_F: bit(s.InboundEnforcement), libibmad.IB_SW_PARTITION_ENF_OUTB_F: bit(s.OutboundEnforcement),
			libibmad.IB_SW_FILTER_RAW_INB_F: bit(s.FilterRawInbound), libibmad.IB_SW_FILTER_RAW_OUTB_F: bit(s.FilterRawOutbound),
			libibmad.IB_SW_ENHANCED_PORT0_F: bit(s.EnhancedPort0), libibmad.IB_SW_MCAST_FDB_TOP_F: uint64(s.MulticastFDBTop),
		} {
			require.Equal(t, o.get(field), got, field)
		}
		require.Equal(t, o.get64(libibmad.IB_NODE_SYSTEM_GUID_F), uint64(n.SystemGUID))
		require.Equal(t, o.get64(libibmad.IB_NODE_GUID_F), uint64(n.GUID))
		require.Equal(t, o.get64(libibmad.IB_NODE_PORT_GUID_F), uint64(n.PortGUID))
	}
}

func TestPortInfoAgainstLibibmad(t *testing.T) {
	o, rng := newOracle(t), rand.New(rand.NewPCG(2, 2))
	for range rounds {
		o.random(rng)
		p := decodePortInfo(o.a)
		for field, got := range map[libibmad.MADFIELDS]uint64{
			libibmad.IB_PORT_LID_F: uint64(p.LID), libibmad.IB_PORT_SMLID_F: uint64(p.SMLID), libibmad.IB_PORT_CAPMASK_F: uint64(p.Capabilities),
			libibmad.IB_PORT_DIAG_F: uint64(p.DiagCode), libibmad.IB_PORT_MKEY_LEASE_F: uint64(p.MKeyLeasePeriod),
			libibmad.IB_PORT_LOCAL_PORT_F: uint64(p.LocalPort), libibmad.IB_PORT_LINK_WIDTH_ENABLED_F: uint64(p.WidthEnabled),
			libibmad.IB_PORT_LINK_WIDTH_SUPPORTED_F: uint64(p.WidthSupported), libibmad.IB_PORT_LINK_WIDTH_ACTIVE_F: uint64(p.Width),
			libibmad.IB_PORT_STATE_F: uint64(p.State), libibmad.IB_PORT_PHYS_STATE_F: uint64(p.PhysState),
			libibmad.IB_PORT_LINK_DOWN_DEF_F: uint64(p.DownDefaultState), libibmad.IB_PORT_MKEY_PROT_BITS_F: uint64(p.MKeyProtect),
			libibmad.IB_PORT_LMC_F: uint64(p.LMC), libibmad.IB_PORT_SMSL_F: uint64(p.SMSL), libibmad.IB_PORT_VL_CAP_F: uint64(p.VLCap),
			libibmad.IB_PORT_INIT_TYPE_F: uint64(p.InitType), libibmad.IB_PORT_VL_HIGH_LIMIT_F: uint64(p.VLHighLimit),
			libibmad.IB_PORT_VL_ARBITRATION_HIGH_CAP_F: uint64(p.VLArbitrationHighCap), libibmad.IB_PORT_VL_ARBITRATION_LOW_CAP_F: uint64(p.VLArbitrationLowCap),
			libibmad.IB_PORT_INIT_TYPE_REPLY_F: uint64(p.InitTypeReply), libibmad.IB_PORT_VL_STALL_COUNT_F: uint64(p.VLStallCount),
			libibmad.IB_PORT_HOQ_LIFE_F: uint64(p.HOQLife), libibmad.IB_PORT_OPER_VLS_F: uint64(p.OperationalVLs),
			libibmad.IB_PORT_PART_EN_INB_F: bit(p.PartitionInbound), libibmad.IB_PORT_PART_EN_OUTB_F: bit(p.PartitionOutbound),
			libibmad.IB_PORT_FILTER_RAW_INB_F: bit(p.FilterRawInbound), libibmad.IB_PORT_FILTER_RAW_OUTB_F: bit(p.FilterRawOutbound),
			libibmad.IB_PORT_MKEY_VIOL_F: uint64(p.MKeyViolations), libibmad.IB_PORT_PKEY_VIOL_F: uint64(p.PKeyViolations),
			libibmad.IB_PORT_QKEY_VIOL_F: uint64(p.QKeyViolations), libibmad.IB_PORT_GUID_CAP_F: uint64(p.GUIDCap),
			libibmad.IB_PORT_CLIENT_REREG_F: bit(p.ClientReregister), libibmad.IB_PORT_MCAST_PKEY_SUPR_ENAB_F: uint64(p.MulticastPKeyTraps),
			libibmad.IB_PORT_SUBN_TIMEOUT_F: uint64(p.SubnetTimeout), libibmad.IB_PORT_RESP_TIME_VAL_F: uint64(p.ResponseTime),
			libibmad.IB_PORT_LOCAL_PHYS_ERR_F: uint64(p.LocalPhysErrors), libibmad.IB_PORT_OVERRUN_ERR_F: uint64(p.OverrunErrors),
			libibmad.IB_PORT_MAX_CREDIT_HINT_F: uint64(p.MaxCreditHint), libibmad.IB_PORT_LINK_ROUND_TRIP_F: uint64(p.LinkRoundTripLatency),
			libibmad.IB_PORT_CAPMASK2_F: uint64(p.Capabilities2),
		} {
			require.Equal(t, o.get(field), got, field)
		}
		require.Equal(t, o.get64(libibmad.IB_PORT_MKEY_F), p.MKey)
		require.Equal(t, o.get64(libibmad.IB_PORT_GID_PREFIX_F), p.GIDPrefix)
		require.Equal(t, mtu(uint8(o.get(libibmad.IB_PORT_NEIGHBOR_MTU_F))), p.NeighborMTU)
		require.Equal(t, mtu(uint8(o.get(libibmad.IB_PORT_MTU_CAP_F))), p.MTUCap)

		// A speed is in three fields, of which older libraries know two.
		var ext2 [3]uint8
		if o.has(libibmad.IB_PORT_LINK_SPEED_EXT_ACTIVE_2_F) {
			ext2 = [3]uint8{
				uint8(o.get(libibmad.IB_PORT_LINK_SPEED_EXT_ACTIVE_2_F)), uint8(o.get(libibmad.IB_PORT_LINK_SPEED_EXT_SUPPORTED_2_F)),
				uint8(o.get(libibmad.IB_PORT_LINK_SPEED_EXT_ENABLED_2_F)),
			}
		} else {
			clear(o.a[56:57]) // where these fields are
			p = decodePortInfo(o.a)
		}
		require.Equal(t, activeSpeed(uint8(o.get(libibmad.IB_PORT_LINK_SPEED_ACTIVE_F)), uint8(o.get(libibmad.IB_PORT_LINK_SPEED_EXT_ACTIVE_F)), ext2[0]), p.Speed)
		require.Equal(t, speedSet(uint8(o.get(libibmad.IB_PORT_LINK_SPEED_SUPPORTED_F)), uint8(o.get(libibmad.IB_PORT_LINK_SPEED_EXT_SUPPORTED_F)), ext2[1]), p.SpeedSupported)
		require.Equal(t, speedSet(uint8(o.get(libibmad.IB_PORT_LINK_SPEED_ENABLED_F)), uint8(o.get(libibmad.IB_PORT_LINK_SPEED_EXT_ENABLED_F)), ext2[2]), p.SpeedEnabled)
	}
}

// What three fields with speeds stand for.
func TestSpeeds(t *testing.T) {
	for _, tt := range []struct {
		speed, ext, ext2 uint8
		want             link.LaneSpeed
	}{
		{1, 0, 0, link.SDR},
		{2, 0, 0, link.DDR},
		{4, 0, 0, link.QDR},
		{4, 1, 0, link.FDR},
		{4, 2, 0, link.EDR},
		{4, 4, 0, link.HDR},
		{4, 8, 0, link.NDR},
		{4, 0, 1, link.XDR},
		{4, 8, 1, link.XDR},
	} {
		require.Equal(t, tt.want, activeSpeed(tt.speed, tt.ext, tt.ext2))
	}
	require.Equal(t, "SDR or DDR or QDR or FDR or EDR", speedSet(7, 3, 0).String())
	require.Equal(t, "SDR or XDR", speedSet(1, extDisabled, 1).String())
	require.Equal(t, "none", SpeedSet(0).String())
	require.Equal(t, "1X or 2X or 4X", WidthSet(1|2|16).String())
}

func TestCountersAgainstLibibmad(t *testing.T) {
	o, rng := newOracle(t), rand.New(rand.NewPCG(3, 3))
	// libibmad takes QP1Dropped from where VL15Dropped is, so that it is not
	// compared.
	fields := map[string]libibmad.MADFIELDS{
		"SymbolErrorCounter": libibmad.IB_PC_ERR_SYM_F, "LinkErrorRecoveryCounter": libibmad.IB_PC_LINK_RECOVERS_F,
		"LinkDownedCounter": libibmad.IB_PC_LINK_DOWNED_F, "PortRcvErrors": libibmad.IB_PC_ERR_RCV_F,
		"PortRcvRemotePhysicalErrors": libibmad.IB_PC_ERR_PHYSRCV_F, "PortRcvSwitchRelayErrors": libibmad.IB_PC_ERR_SWITCH_REL_F,
		"PortXmitDiscards": libibmad.IB_PC_XMT_DISCARDS_F, "PortXmitConstraintErrors": libibmad.IB_PC_ERR_XMTCONSTR_F,
		"PortRcvConstraintErrors": libibmad.IB_PC_ERR_RCVCONSTR_F, "LocalLinkIntegrityErrors": libibmad.IB_PC_ERR_LOCALINTEG_F,
		"ExcessiveBufferOverrunErrors": libibmad.IB_PC_ERR_EXCESS_OVR_F, "VL15Dropped": libibmad.IB_PC_VL15_DROPPED_F,
		"PortXmitData": libibmad.IB_PC_XMT_BYTES_F, "PortRcvData": libibmad.IB_PC_RCV_BYTES_F,
		"PortXmitPkts": libibmad.IB_PC_XMT_PKTS_F, "PortRcvPkts": libibmad.IB_PC_RCV_PKTS_F, "PortXmitWait": libibmad.IB_PC_XMT_WAIT_F,
	}
	extended := map[string]libibmad.MADFIELDS{
		"PortXmitData": libibmad.IB_PC_EXT_XMT_BYTES_F, "PortRcvData": libibmad.IB_PC_EXT_RCV_BYTES_F,
		"PortXmitPkts": libibmad.IB_PC_EXT_XMT_PKTS_F, "PortRcvPkts": libibmad.IB_PC_EXT_RCV_PKTS_F,
		"PortUnicastXmitPkts": libibmad.IB_PC_EXT_XMT_UPKTS_F, "PortUnicastRcvPkts": libibmad.IB_PC_EXT_RCV_UPKTS_F,
		"PortMulticastXmitPkts": libibmad.IB_PC_EXT_XMT_MPKTS_F, "PortMulticastRcvPkts": libibmad.IB_PC_EXT_RCV_MPKTS_F,
		"SymbolErrorCounter": libibmad.IB_PC_EXT_ERR_SYM_F, "LinkErrorRecoveryCounter": libibmad.IB_PC_EXT_LINK_RECOVERS_F,
		"LinkDownedCounter": libibmad.IB_PC_EXT_LINK_DOWNED_F, "PortRcvErrors": libibmad.IB_PC_EXT_ERR_RCV_F,
		"PortRcvRemotePhysicalErrors": libibmad.IB_PC_EXT_ERR_PHYSRCV_F, "PortRcvSwitchRelayErrors": libibmad.IB_PC_EXT_ERR_SWITCH_REL_F,
		"PortXmitDiscards": libibmad.IB_PC_EXT_XMT_DISCARDS_F, "PortXmitConstraintErrors": libibmad.IB_PC_EXT_ERR_XMTCONSTR_F,
		"PortRcvConstraintErrors": libibmad.IB_PC_EXT_ERR_RCVCONSTR_F, "LocalLinkIntegrityErrors": libibmad.IB_PC_EXT_ERR_LOCALINTEG_F,
		"ExcessiveBufferOverrunErrors": libibmad.IB_PC_EXT_ERR_EXCESS_OVR_F, "VL15Dropped": libibmad.IB_PC_EXT_VL15_DROPPED_F,
		"PortXmitWait": libibmad.IB_PC_EXT_XMT_WAIT_F, "QP1Dropped": libibmad.IB_PC_EXT_QP1_DROP_F,
	}
	for range rounds {
		o.random(rng)
		var c Counters
		decodePlaces(o.a, c.places())
		for _, counter := range c.All() {
			if field, ok := fields[counter.Name]; ok {
				require.Equal(t, o.get(field), counter.Value, counter.Name)
			} else {
				require.Equal(t, "QP1Dropped", counter.Name)
			}
		}
		var e ExtendedCounters
		decodePlaces(o.a, e.places())
		compared := 0
		for _, counter := range e.All() {
			require.Contains(t, extended, counter.Name)
			if field := extended[counter.Name]; o.has(field) {
				require.Equal(t, o.get64(field), counter.Value, counter.Name)
				compared++
			}
		}
		require.GreaterOrEqual(t, compared, 8)
		p := decodePerformance(o.a)
		require.Equal(t, o.get(libibmad.IB_CPI_CAPMASK_F), uint64(p.Capabilities))
		require.Equal(t, o.get(libibmad.IB_CPI_CAPMASK2_F), uint64(p.Capabilities2))
		require.Equal(t, o.get(libibmad.IB_CPI_RESP_TIME_VALUE_F), uint64(p.ResponseTime))
	}
}

// The fields that requests set.
func TestSetFieldAgainstLibibmad(t *testing.T) {
	o, rng := newOracle(t), rand.New(rand.NewPCG(4, 4))
	for range rounds {
		for _, tt := range []struct {
			field         libibmad.MADFIELDS
			offset, width int
		}{
			{libibmad.IB_PC_PORT_SELECT_F, portSelect, 8},
			{libibmad.IB_PC_COUNTER_SELECT_F, counterSelect, 16},
			{libibmad.IB_PC_COUNTER_SELECT2_F, counterSelect2, 8},
			{libibmad.IB_PC_EXT_COUNTER_SELECT2_F, extCounterSelect2, 32},
		} {
			if !o.has(tt.field) {
				continue
			}
			o.random(rng)
			got, value := *o.a, rng.Uint32()&(1<<tt.width-1)
			got.setField(tt.offset, tt.width, uint64(value))
			require.NoError(t, libibmad.SetField(unsafe.Pointer(o.a), 0, tt.field, value))
			require.Equal(t, *o.a, got, tt.field)
		}
	}
}

func TestMarshalAgainstLibibmad(t *testing.T) {
	newOracle(t)
	rng := rand.New(rand.NewPCG(5, 5))
	for range rounds {
		r := &request{modifier: rng.Uint32(), set: rng.IntN(2) == 1, to: AtLID(LID(1 + rng.IntN(1000)))}
		r.attribute = []attributeID{attrNodeDescription, attrPortInfo, attrSwitchInfo, attrCounters, attrExtCounters}[rng.IntN(5)]
		tid := 1 + rng.Uint32N(1<<32-1) // libibmad takes 0 for none
		rpc := &libibmad.RpcT{
			Mgtclass: classLIDRouted, Method: methodGet, Trid: uint64(tid),
			Attr: libibmad.AttrT{Id: uint32(r.attribute.number), Mod: r.modifier},
		}
		if r.set {
			rpc.Method = methodSet
		}
		var path *libibmad.DrPathT
		var data unsafe.Pointer
		switch {
		case r.attribute.perf:
			for i := range r.data {
				r.data[i] = byte(rng.Uint32())
			}
			rpc.Mgtclass, rpc.Dataoffs, rpc.Datasz = classPerf, libibmad.IB_PC_DATA_OFFS, libibmad.IB_PC_DATA_SZ
			data = unsafe.Pointer(&r.data)
		case rng.IntN(2) == 1:
			path, rpc.Mgtclass = &libibmad.DrPathT{}, classDirected
			var route Route
			for range rng.IntN(MaxHops + 1) {
				port := 1 + rng.IntN(254)
				path.Cnt++
				path.P[path.Cnt] = uint8(port)
				var err error
				route, err = route.Then(port)
				require.NoError(t, err)
			}
			r.to = AtRoute(route)
			fallthrough
		default:
			r.mkey = rng.Uint64()
			rpc.Mkey = r.mkey
		}
		var want mad
		_, err := libibmad.Encode(unsafe.Pointer(&want), rpc, path, data)
		require.NoError(t, err)
		require.Equal(t, want, *r.marshal(tid))
	}
}
