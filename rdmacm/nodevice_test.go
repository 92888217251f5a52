// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// On a machine without the library or without a device, the errors say what is
// missing.
func TestWithoutDevice(t *testing.T) {
	if ch, err := rdmacm.NewEventChannel(); err == nil {
		require.NoError(t, ch.Close())
		t.Skip("this machine has RDMA")
	}
	check := func(err error) {
		t.Helper()
		t.Log(err)
		library, missing := errors.AsType[*ibverbs.LibraryError](err)
		switch {
		case missing:
			require.ErrorContains(t, err, library.Debian)
		case errors.Is(err, errors.ErrUnsupported): // a build without cgo
			require.ErrorContains(t, err, "this program was built")
		default:
			require.ErrorIs(t, err, syscall.ENODEV)
			require.ErrorContains(t, err, "no RDMA device that can be opened; give access")
			require.ErrorContains(t, err, "VERBENA_DEVICE=soft")
		}
	}
	_, err := rdmacm.Dial(t.Context(), "192.0.2.1:7471", inPool(nil))
	check(err)
	require.ErrorContains(t, err, "dial 192.0.2.1:7471: ")
	_, err = rdmacm.Listen(t.Context(), ":7471", nil)
	check(err)
	require.ErrorContains(t, err, "listen on :7471: ")
	_, err = rdmacm.NewEventChannel()
	check(err)
	_, err = rdmacm.Devices()
	check(err)
	_, err = endpoint.New(rdmacm.PortSpaceTCP)
	check(err)
	_, err = endpoint.Create(t.Context(), rdmacm.AddrInfo{}, nil, nil)
	check(err)
	_, err = rdmacm.GetAddrInfo(t.Context(), "localhost", "7471", nil)
	check(err)
}
