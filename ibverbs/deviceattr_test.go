// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

func TestQueryDeviceExtended(t *testing.T) {
	r := open(t)
	a := must(r.c.QueryDevice())(t)
	text := must(json.MarshalIndent(a, "", " "))(t)
	t.Logf("%s", text)

	info := devinfo(t, r.device)
	if info == nil {
		t.Log("there is no ibv_devinfo that knows the device: its values were not compared")
		return
	}
	compared := 0
	for name, got := range map[string]any{
		"max_res_rd_atom": a.MaxResReadAtomic, "local_ca_ack_delay": a.LocalAckDelay,
		"max_mcast_qp_attach": a.MaxMcastQPAttach, "max_total_mcast_qp_attach": a.MaxTotalMcastQPAttach,
		"max_wq_type_rq": a.MaxWQ, "maximum available device memory": fmt.Sprintf("%dBytes", a.MaxDeviceMemory),
		"max_cq_count": a.CQModeration.MaxCount, "max_cq_period": fmt.Sprintf("%d us", a.CQModeration.MaxPeriod),
		"max_tso": a.TSO.MaxPayload, "max_rwq_indirection_tables": a.RSS.MaxIndirectionTables,
		"max_rwq_indirection_table_size": a.RSS.MaxIndirectionTableSize, "rx_hash_function": fmt.Sprintf("0x%x", uint32(a.RSS.HashFunctions)),
		"rx_hash_fields_mask": fmt.Sprintf("0x%X", uint32(a.RSS.HashFields)),
		"qp_rate_limit_min":   fmt.Sprintf("%dkbps", a.PacketPacing.MinRate), "qp_rate_limit_max": fmt.Sprintf("%dkbps", a.PacketPacing.MaxRate),
		"completion timestamp_mask": fmt.Sprintf("0x%016x", a.CompletionTimestampMask),
		"hca_core_clock":            fmt.Sprintf("%dkHZ", a.CoreClock), "max_num_tags": a.TagMatching.MaxTags,
		"device_cap_flags_ex": fmt.Sprintf("0x%X", uint64(a.Capabilities)),
	} {
		// The program leaves out or words otherwise what a device lacks.
		if said, ok := info[name]; ok && strings.ContainsAny(said, "0123456789") {
			require.Equal(t, said, fmt.Sprint(got), name)
			compared++
		}
	}
	require.GreaterOrEqual(t, compared, 10)
}

func TestRawClock(t *testing.T) {
	r := open(t)
	first, err := r.c.RawClock()
	if must(r.c.QueryDevice())(t).CoreClock == 0 {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "ibv_query_rt_values_ex ("+r.device.Name+")")
		t.Log(err)
		return
	}
	require.NoError(t, err)
	require.Less(t, first, must(r.c.RawClock())(t))
}

func TestDeviceIndex(t *testing.T) {
	d := testdevice.Require(t)
	for _, found := range must(ibverbs.Devices())(t) {
		if found.Name == d.Name {
			require.GreaterOrEqual(t, found.Index, 0)
		}
	}
}

func TestQueryDeviceInfo(t *testing.T) {
	d := testdevice.Require(t)
	testdevice.NoLeaks(t)
	info := must(ibverbs.QueryDeviceInfo(d.Name))(t)
	require.Equal(t, d.Name, info.Device.Name)
	require.Equal(t, info.Attr.NodeGUID, info.Device.GUID)
	require.Len(t, info.Ports, info.Attr.Ports)
	require.Positive(t, info.CompVectors)
	if said := devinfo(t, d); said != nil {
		require.Equal(t, said["num_comp_vectors"], strconv.Itoa(info.CompVectors))
		require.Equal(t, said["board_id"], info.BoardID)
	}
	p := info.Ports[d.Port-1]
	require.Equal(t, d.Port, p.Port)
	require.Equal(t, d.NetDev, p.NetDev)
	require.Equal(t, p.PortAttr.Rate(), p.Rate)
	require.NotEmpty(t, p.GIDs)

	text := must(json.MarshalIndent(info, "", " "))(t)
	t.Logf("%s", text)
	var back ibverbs.DeviceInfo
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, info, back)

	_, err := ibverbs.QueryDeviceInfo("no_such0")
	require.ErrorIs(t, err, ibverbs.ErrNoDevice)
}

func TestPortAgainstC(t *testing.T) {
	r := open(t)
	p := must(r.c.QueryPort(r.device.Port))(t)
	require.Equal(t, link.PhysLinkUp, p.PhysicalState)
	if !testdevice.Soft() {
		dir := "ports/" + strconv.Itoa(r.device.Port) + "/"
		require.Equal(t, fmt.Sprintf("%d: %s", int(p.PhysicalState), p.PhysicalState), sysfs(t, r.device, dir+"phys_state"))
		require.Equal(t, sysfs(t, r.device, dir+"sm_sl"), strconv.Itoa(int(p.SMSL)))
		rate := fmt.Sprintf("%g Gb/sec (%dX", p.Rate(), p.ActiveWidth.Lanes())
		require.True(t, strings.HasPrefix(sysfs(t, r.device, dir+"rate"), rate), "%s, not %s", sysfs(t, r.device, dir+"rate"), rate)
	}

	info := devinfo(t, r.device)
	if info == nil {
		t.Log("there is no ibv_devinfo that knows the device: its values were not compared")
		return
	}
	require.Equal(t, info["active_width"], fmt.Sprintf("%dX (%d)", p.ActiveWidth.Lanes(), int(p.ActiveWidth)))
	require.Equal(t, info["active_speed"], fmt.Sprintf("%.1f Gbps (%d)", p.ActiveSpeed.Rate(), int(p.ActiveSpeed)))
	require.Equal(t, info["max_vl_num"], map[int]string{0: "invalid value (0)", 1: "1 (1)", 2: "2 (2)", 4: "4 (3)", 8: "8 (4)", 15: "15 (5)"}[p.MaxVLs])
	require.Equal(t, info["subnet_timeout"], strconv.Itoa(int(p.SubnetTimeout)))
	require.Equal(t, info["init_type_reply"], strconv.Itoa(int(p.InitTypeReply)))
	require.Equal(t, info["bad_pkey_cntr"], fmt.Sprintf("0x%x", p.BadPKeys))
	require.Equal(t, info["qkey_viol_cntr"], fmt.Sprintf("0x%x", p.QKeyViolations))
	require.Contains(t, info["phys_state"], fmt.Sprintf("(%d)", int(p.PhysicalState)))
}

func TestQueryPortSpeed(t *testing.T) {
	r := open(t)
	speed, err := r.c.QueryPortSpeed(r.device.Port)
	if err != nil {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		t.Log(err)
		return
	}
	require.Positive(t, speed)
}
