// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// escaped keeps requests on the heap.
var escaped *libibverbs.RecvWr

// TestPinned has Go memory that a struct points to, as the comment of package
// libibverbs says: on the heap, it must be pinned.
func TestPinned(t *testing.T) {
	r := open(t)
	qp := r.qp(ibverbs.QPTypeRC)
	list := &libibverbs.Sge{Addr: 1, Length: 2, Lkey: 3}
	escaped = &libibverbs.RecvWr{SgList: list, NumSge: 1}
	bad := new(*libibverbs.RecvWr)
	post := func() { require.NoError(t, libibverbs.PostRecv(qp.Raw(), escaped, bad)) }
	r.p.Forget()
	require.Panics(t, post)
	require.Empty(t, r.p.Names())

	var pinner runtime.Pinner
	pinner.Pin(list)
	defer pinner.Unpin()
	post()
	r.p.Only("ibv_post_recv")
}
