// SPDX-License-Identifier: Apache-2.0

package mlx5_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/mlx5"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// A device of another driver says so, by the library of this one; and so does
// the device in user space, which has none.
func TestUnsupported(t *testing.T) {
	found := testdevice.RequireSoftware(t)
	found.Have(t, testdevice.SRQs)
	testdevice.NoLeaks(t)
	device := must(ibverbs.Open(found.Name))(t)
	pd := must(device.AllocPD())(t)
	cq := must(device.CreateCQ(ibverbs.CQConfig{CompQueue: 4}))(t)
	srq := must(pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: 1}))(t)
	if supported, err := mlx5.IsSupported(device); err == nil {
		require.False(t, supported)
	} else {
		require.ErrorIs(t, err, errors.ErrUnsupported)
	}
	for name, err := range map[string]error{
		"query":     failed(mlx5.Query(device)),
		"initiator": failed(mlx5.CreateDCI(pd, mlx5.DCIConfig{CQ: cq, SendQueue: 1})),
		"target":    failed(mlx5.CreateDCT(pd, mlx5.DCTConfig{CQ: cq, SRQ: srq})),
	} {
		require.ErrorIs(t, err, errors.ErrUnsupported, name)
	}
}

// must fails the test for an error and returns the value, which it closes at
// the end of the test.
func must[T interface{ Close() error }](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, v.Close()) })
		return v
	}
}

// failed returns the error of a call that returns a value too.
func failed[T any](_ T, err error) error { return err }
