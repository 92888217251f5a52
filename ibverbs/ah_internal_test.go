// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/datapath"
)

// What is no datagram with a header is refused before C reads it.
func TestAHFromBadCompletion(t *testing.T) {
	c := &Device{}
	c.object.InitUnlisted("fake")
	pd := &PD{device: c}
	pd.object.InitUnlisted("fake PD")
	good := libibverbs.Wc{Opcode: WCRecv, WcFlags: libibverbs.IBV_WC_GRH}
	failed, sent := good, good
	failed.Status = libibverbs.IBV_WC_WR_FLUSH_ERR
	sent.Opcode = WCSend
	tests := map[string]struct {
		wc   *WC
		grh  int // bytes
		port int
		want string
	}{
		"no completion": {nil, 40, 1, "wc is nil"},
		"port":          {&WC{datapath.WC{Wc: good}}, 40, 0, "(fake): port is 0, not from 1 to 255"},
		"large port":    {&WC{datapath.WC{Wc: good}}, 40, 256, "(fake): port is 256, not from 1 to 255"},
		"failed":        {&WC{datapath.WC{Wc: failed}}, 40, 1, "(fake): the completion is of a request that failed"},
		"sent":          {&WC{datapath.WC{Wc: sent}}, 40, 1, "(fake): the completion is not of a receive"},
		"no memory":     {&WC{datapath.WC{Wc: good}}, 0, 1, "(fake): grh has 0 bytes, fewer than the 40 of the header"},
		"little memory": {&WC{datapath.WC{Wc: good}}, 39, 1, "(fake): grh has 39 bytes, fewer than the 40 of the header"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := pd.CreateAHFromWC(tt.wc, make([]byte, tt.grh), tt.port)
			require.ErrorContains(t, err, "ibv_create_ah_from_wc")
			require.ErrorContains(t, err, tt.want)
			require.ErrorIs(t, err, syscall.EINVAL)
			_, err = c.AHAttrFromWC(tt.wc, make([]byte, tt.grh), tt.port)
			require.ErrorContains(t, err, "ibv_init_ah_from_wc")
			require.ErrorContains(t, err, tt.want)
		})
	}

	grh := make([]byte, 100)
	grh[0], grh[39], grh[40] = 0x60, 7, 99
	header, port, err := received("op", c, &WC{datapath.WC{Wc: good}}, grh, 3)
	require.NoError(t, err)
	require.EqualValues(t, 3, port)
	require.EqualValues(t, 0x60000000, header.VersionTclassFlow.Host())
	require.EqualValues(t, 7, header.Dgid.Raw()[15])

	local := good
	local.WcFlags = 0 // within an InfiniBand subnet
	header, _, err = received("op", c, &WC{datapath.WC{Wc: local}}, nil, 1)
	require.NoError(t, err)
	require.Zero(t, header)
}
