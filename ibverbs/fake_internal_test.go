// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// fakeMR returns a region that no device knows.
func fakeMR(t testing.TB, size int, lkey uint32) *MR {
	t.Helper()
	b := make([]byte, size)
	mr := &MR{
		raw:    &libibverbs.Mr{Lkey: lkey, Rkey: lkey + 1},
		region: region{bytes: b, start: addressOf(b), size: size, lkey: lkey, rkey: lkey + 1},
	}
	mr.itself = mr
	mr.object.InitUnlisted("fake MR")
	return mr
}

// closeFake closes a region from fakeMR.
func closeFake(t *testing.T, mr *MR) {
	t.Helper()
	require.NoError(t, mr.object.Close(nil, func() error { return nil }))
}

// sgesOf returns the segments of a request as C finds them.
func sgesOf(first *libibverbs.Sge, n int32) []libibverbs.Sge { return unsafe.Slice(first, n) }

// addr returns the address of the first byte in work requests.
func (mr *MR) addr() uint64 { return mr.start }
