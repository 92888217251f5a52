// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
)

// TestEnumText has one of each kind of value that is not plainly one name.
func TestEnumText(t *testing.T) {
	tests := []struct {
		name  string
		value interface{ String() string }
		want  string
	}{
		{"two names", libibverbs.RDMA_DRIVER_IRDMA, "RDMA_DRIVER_I40IW"},
		{"no flag, which has three names", libibverbs.IB_UVERBS_FLOW_ACTION_ESP_FLAGS_DECRYPT, "0"},
		{"flags", libibverbs.IBV_ACCESS_LOCAL_WRITE | libibverbs.IBV_ACCESS_REMOTE_READ, "IBV_ACCESS_LOCAL_WRITE|IBV_ACCESS_REMOTE_READ"},
		{"flags without names", libibverbs.IBV_SEND_FENCE | 0x40000000, "IBV_SEND_FENCE|0x40000000"},
		{
			"name of several flags", libibverbs.IBV_REREG_MR_FLAGS_SUPPORTED,
			"IBV_REREG_MR_CHANGE_TRANSLATION|IBV_REREG_MR_CHANGE_PD|IBV_REREG_MR_CHANGE_ACCESS",
		},
		{"name of flags without names", libibverbs.IB_UVERBS_ACCESS_OPTIONAL_RANGE, "IB_UVERBS_ACCESS_RELAXED_ORDERING|0x3fe00000"},
		{"highest bit", libibverbs.IBV_RX_HASH_INNER, "IBV_RX_HASH_INNER"},
		{"negative", libibverbs.IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW, "IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW"},
		{"negative without a name", libibverbs.ReregMrErrCode(-9), "ReregMrErrCode(-9)"},
		{"modified", libibverbs.IBV_FLOW_SPEC_TCP | libibverbs.IBV_FLOW_SPEC_INNER, "IBV_FLOW_SPEC_TCP|IBV_FLOW_SPEC_INNER"},
		{"bit and value at once", libibverbs.IBV_WC_RECV | 5, "IBV_WC_TM_RECV"},
		{"without a name", libibverbs.WcOpcode(0x8a), "WcOpcode(138)"},
		{"unsigned", libibverbs.Mtu(1 << 31), "Mtu(2147483648)"},
		{"C's own text", librdmacm.RDMA_CM_EVENT_ESTABLISHED, "RDMA_CM_EVENT_ESTABLISHED"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, tt.want, tt.value.String()) })
	}
}

// TestEnumNames shows that every name of a value is understood.
func TestEnumNames(t *testing.T) {
	for _, name := range []string{"RDMA_DRIVER_I40IW", "RDMA_DRIVER_IRDMA", "RdmaDriverId(9)"} {
		v, err := libibverbs.ParseRdmaDriverId(name)
		require.NoError(t, err)
		require.Equal(t, libibverbs.RDMA_DRIVER_IRDMA, v)
	}
	for _, name := range []string{
		"IB_UVERBS_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO", "IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TUNNEL", "IB_UVERBS_FLOW_ACTION_ESP_FLAGS_DECRYPT",
	} {
		v, err := libibverbs.ParseIbUverbsFlowActionEspFlags(name)
		require.NoError(t, err)
		require.Zero(t, v)
	}
	require.EqualValues(t, librdmacm.RDMA_MAX_RESP_RES, librdmacm.RDMA_MAX_INIT_DEPTH)
}
