// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// The hint of what the device has too few of says so, and not that locked
// memory has a limit.
func TestHintsOfLimits(t *testing.T) {
	d := testdevice.Require(t)
	device, err := ibverbs.Open(d.Name)
	require.NoError(t, err)
	defer device.Close()
	attr, err := device.QueryDevice()
	require.NoError(t, err)
	pd, err := device.AllocPD()
	require.NoError(t, err)
	const most = 1 << 17 // objects, which takes a while
	for name, tt := range map[string]struct {
		limit  int
		create func() (close func() error, err error)
		text   string
	}{
		"shared receive queues": {attr.MaxSRQ, func() (func() error, error) {
			srq, err := pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: 1})
			if err != nil {
				return nil, err
			}
			return srq.Close, nil
		}, "shared receive queues, and " + d.Name + " allows "},
		"protection domains": {attr.MaxPD, func() (func() error, error) {
			pd, err := device.AllocPD()
			if err != nil {
				return nil, err
			}
			return pd.Close, nil
		}, "protection domains, and " + d.Name + " allows "},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.limit > most || testing.Short() {
				t.Skipf("the device has %d", tt.limit)
			}
			var closes []func() error
			defer func() {
				for _, f := range closes {
					require.NoError(t, f())
				}
			}()
			var failed error
			for range tt.limit + 1 {
				f, err := tt.create()
				if failed = err; err != nil {
					break
				}
				closes = append(closes, f)
			}
			require.Error(t, failed)
			e, ok := errors.AsType[*ibverbs.Error](failed)
			require.True(t, ok, failed)
			if tt.limit == 0 {
				tt.text = d.Name + " has no " + name
			}
			require.Contains(t, e.Hint(), tt.text)
			require.NotContains(t, failed.Error(), "ulimit")
		})
	}
	require.NoError(t, pd.Close())
}
