package ibverbs_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// Soft-RoCE has no tag lists: neither in an SRQ that is not made with one, nor
// in C, which is asked directly.
func TestTagMatchingUnsupported(t *testing.T) {
	r := open(t)
	srq := r.srq(ibverbs.SRQConfig{MaxWR: 1})
	batch := must(ibverbs.NewTagBatch(1, 0))(t)
	require.NoError(t, batch.Add(ibverbs.TagOp{ID: 7}, ibverbs.TagRecv{}))
	n, err := srq.PostTagOps(batch)
	require.Zero(t, n)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "request 0 of the batch (ID 7), none was posted: ibv_post_srq_ops (IBV_WR_TAG_ADD on SRQ ")
	var bad *libibverbs.OpsWr
	require.ErrorIs(t, libibverbs.PostSrqOps(srq.Raw(), &libibverbs.OpsWr{}, &bad), errors.ErrUnsupported)

	cq := r.cq(4, nil)
	_, err = r.pd.CreateSRQ(ibverbs.SRQConfig{Type: ibverbs.SRQTypeTagMatching, CQ: cq, MaxWR: 1, MaxTags: 1, MaxTagOps: 1})
	if err != nil || strings.HasPrefix(r.device.Name, "rxe") {
		require.ErrorIs(t, err, errors.ErrUnsupported)
	}
	require.NoError(t, cq.Close(), "nothing is left on it")
}

// Soft-RoCE has no parent domains, and so no queue on one. What is no parent
// domain is refused before that.
func TestParentDomainUnsupported(t *testing.T) {
	r := open(t)
	for name, err := range map[string]error{
		"plain":       closing(r.pd.AllocParentDomain(nil)),
		"unprotected": closing(r.pd.AllocUnprotectedParentDomain(nil)),
	} {
		if err != nil || strings.HasPrefix(r.device.Name, "rxe") {
			require.ErrorIs(t, err, errors.ErrUnsupported, name)
			require.ErrorContains(t, err, "ibv_alloc_parent_domain (PD ", name)
		}
	}
	_, err := r.c.CreateCQ(ibverbs.CQConfig{Entries: 1, ParentDomain: r.pd})
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "which is no parent domain")
}

// No device that does not know a number of another process's memory gives it.
func TestImportDMUnsupported(t *testing.T) {
	r := open(t)
	_, err := r.c.ImportDM(ibverbs.DMExport{Handle: 1, Len: 4096})
	require.Error(t, err)
	if strings.HasPrefix(r.device.Name, "rxe") {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "ibv_import_dm (DM 1 of 4096 bytes of rxe")
	}
}

// A library from rdma-core 64 on has buffers for any device; one before that
// says so.
func TestBufOfDevice(t *testing.T) {
	r := open(t)
	buf, err := r.pd.AllocBuf(8192)
	var old *ibverbs.SymbolError
	if errors.As(err, &old) {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "ibv_alloc_buf")
		require.ErrorContains(t, err, "64")
		return
	}
	require.NoError(t, err)
	r.cleanup(buf)
	a, b := r.pair(nil)
	mr := must(buf.Register(100, 4096, ibverbs.AccessLocalWrite))(t)
	r.cleanup(mr)
	require.ErrorIs(t, buf.Close(), syscall.EBUSY)
	want := pattern(mr.Bytes(), 3)
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		return s.Write(1, b.mr.Remote(), ibverbs.SendSignaled, mr.All())
	})
	collectOK(t, a.sendCQ, 1)
	require.Equal(t, want, b.mr.Sub(0, 4096).Bytes())
	_, err = buf.ExportDMABuf()
	require.True(t, errors.Is(err, syscall.ENODATA) || errors.Is(err, errors.ErrUnsupported), "%v", err)
}
