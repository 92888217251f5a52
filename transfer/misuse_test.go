// SPDX-License-Identifier: Apache-2.0

package transfer_test

import (
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/misuse"
	"github.com/verbena-go/verbena/transfer"
)

// No method panics or succeeds on a value that no function has made.
func TestMethodsOfNothing(t *testing.T) {
	for _, object := range []any{
		(*transfer.Engine)(nil), new(transfer.Engine), (*transfer.Peer)(nil), new(transfer.Peer), (*transfer.Listener)(nil), new(transfer.Listener),
		(*transfer.Batch)(nil), new(transfer.Batch), (*transfer.Region)(nil), new(transfer.Region), (*transfer.RemoteRegion)(nil), new(transfer.RemoteRegion),
	} {
		for _, m := range misuse.Methods(object) {
			_, err := m.Call(misuse.Zero)
			if m.Fails && m.Name != "Close" {
				require.Error(t, err, "%T.%s", object, m.Name)
			} else {
				require.NoError(t, err, "%T.%s", object, m.Name)
			}
		}
	}
}

// No method panics on wrong arguments.
func TestWrongArguments(t *testing.T) {
	needDevice(t)
	p := newPair(t, transfer.Config{})
	remote, err := p.dialed.Region(bounded(t), "memory")
	require.NoError(t, err)
	for _, object := range []any{p.a, p.dialed, p.ln, p.dialed.NewBatch(1), p.atA, remote} {
		for _, m := range misuse.Methods(object) {
			if m.Name == "Close" {
				continue
			}
			for _, n := range []int64{0, 1, -1, math.MaxInt64, math.MinInt64} {
				_, err := m.Call(misuse.Filled(n, cmtest.Canceled(t), remote, p.atA))
				var panicked *misuse.Panic
				require.NotErrorAs(t, err, &panicked, "%T.%s with %d", object, m.Name, n)
			}
			_, err := m.Call(misuse.Zero)
			var panicked *misuse.Panic
			require.NotErrorAs(t, err, &panicked, "%T.%s with zeros", object, m.Name)
		}
	}
}

// Wrong requests are refused before anything is sent.
func TestWrongRequests(t *testing.T) {
	needDevice(t)
	ctx := bounded(t)
	p := newPair(t, transfer.Config{})
	readable, err := p.b.Alloc(100, transfer.RegionConfig{Name: "readable", Access: transfer.ReadAccess})
	require.NoError(t, err)
	remote, err := p.dialed.Region(ctx, "readable")
	require.NoError(t, err)
	back, err := p.accepted.Region(ctx, "memory")
	require.NoError(t, err)
	b, ten := p.dialed.NewBatch(1), make([]byte, 10)
	for name, err := range map[string]error{
		"no region":                  b.Read(ten, nil, 0),
		"region of another peer":     b.Read(ten, back, 0),
		"behind the end":             b.Read(ten, remote, 91),
		"offset behind the end":      b.Read(nil, remote, 101),
		"offset that overflows":      b.Read(ten, remote, math.MaxUint64-5),
		"too long":                   b.Read(make([]byte, 101), remote, 0),
		"write without access":       b.Write(remote, 0, ten),
		"no local region":            b.ReadRegion(nil, 0, 1, remote, 0),
		"local region of the other":  b.ReadRegion(readable, 0, 1, remote, 0),
		"local offset is negative":   b.ReadRegion(p.atA, -1, 1, remote, 0),
		"local length is negative":   b.ReadRegion(p.atA, 0, -1, remote, 0),
		"local offset that overflow": b.ReadRegion(p.atA, math.MaxInt, 10, remote, 0),
		"message that is too long":   b.Notify(make([]byte, transfer.MaxNotification+1)),
		"no request":                 b.Submit(ctx),
		"wait for nothing":           b.Wait(ctx),
		"no memory":                  second(p.a.Register(nil, transfer.RegionConfig{})),
		"no size":                    second(p.a.Alloc(0, transfer.RegionConfig{})),
		"negative size":              second(p.a.Alloc(-1, transfer.RegionConfig{})),
		"long name":                  second(p.a.Alloc(1, transfer.RegionConfig{Name: string(make([]byte, 256))})),
		"unknown access":             second(p.a.Alloc(1, transfer.RegionConfig{Access: 4})),
		"name in use":                second(p.a.Alloc(1, transfer.RegionConfig{Name: "memory"})),
		"large credentials":          second(p.a.Dial(ctx, "10.77.0.1:1", transfer.DialConfig{Credentials: make([]byte, transfer.MaxCredentials+1)})),
		"negative config":            second(transfer.New(transfer.Config{Mailbox: -1})),
	} {
		require.Error(t, err, name)
	}
	require.Zero(t, b.Len())
	require.ErrorIs(t, b.Write(remote, 0, ten), syscall.EACCES)
	require.NoError(t, b.Read(nil, remote, 100), "nothing, at the end")
	require.NoError(t, carryOut(ctx, b, nil))
}

func second[T any](_ T, err error) error { return err }
