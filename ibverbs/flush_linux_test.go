// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// A persistent flush needs memory of a file, whose contents survive.
func TestFlushFile(t *testing.T) {
	r := open(t)
	a, b := late(t, r, libibverbs.IBV_QP_EX_WITH_FLUSH, fullAccess|ibverbs.AccessFlushGlobal)
	if a == nil {
		return
	}
	const size = 3 << 12
	file := must(os.Create(filepath.Join(t.TempDir(), "log")))(t)
	defer file.Close()
	require.NoError(t, file.Truncate(size))
	memory := must(syscall.Mmap(int(file.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED))(t)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(memory)) })
	access := fullAccess | ibverbs.AccessFlushPersistent
	mr, err := r.pd.Register(memory, access)
	if err != nil {
		t.Logf("only persistent memory with this device: %v", err)
		return
	}
	r.cleanup(mr)
	_, err = r.pd.Alloc(64, access)
	require.ErrorIs(t, err, syscall.EINVAL)

	pattern(a.mr.Bytes(), 3)
	require.NoError(t, b.qp.Modify(ibverbs.QPAttr{Access: access}, ibverbs.QPAttrAccess))
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		to := mr.Remote().Sub(100, 5000)
		return errors.Join(s.Write(1, to, 0, a.mr.Sub(0, 5000)), s.Flush(2, to, ibverbs.FlushPersistent, ibverbs.SendSignaled),
			s.FlushRegion(3, to, ibverbs.FlushPersistent, ibverbs.SendSignaled))
	})
	collectOK(t, a.sendCQ, 2)
	got := make([]byte, 5000)
	require.Equal(t, len(got), must(file.ReadAt(got, 100))(t))
	require.Equal(t, a.mr.Sub(0, 5000).Bytes(), got)
	mr2 := r.alloc(64, fullAccess|ibverbs.AccessFlushGlobal)
	a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Flush(4, mr2.Remote(), ibverbs.FlushPersistent, 0) })
	requireWC(t, collect(t, a.sendCQ, 1)[0], 4, a.qp, ibverbs.WCRemoteAccess, ibverbs.WCClassRemote)
}
