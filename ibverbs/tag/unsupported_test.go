// SPDX-License-Identifier: Apache-2.0

package tag_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/tag"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// A queue that is not made with a tag list has none, in C neither, which is
// asked directly. Soft-RoCE has no tag lists at all.
func TestUnsupported(t *testing.T) {
	found := testdevice.Require(t)
	found.Have(t, testdevice.SRQs)
	testdevice.NoLeaks(t)
	device := must(ibverbs.Open(found.Name))(t)
	pd := must(device.AllocPD())(t)
	srq := must(pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: 1}))(t)
	batch, err := tag.NewBatch(1, 0)
	require.NoError(t, err)
	require.NoError(t, batch.Add(tag.Op{ID: 7}, tag.Recv{}))
	n, err := tag.Post(srq, batch)
	require.Zero(t, n)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "request 0 of the batch (ID 7), none was posted: ibv_post_srq_ops (SRQ ")
	var bad *libibverbs.OpsWr
	require.ErrorIs(t, libibverbs.PostSrqOps(srq.Raw(), &libibverbs.OpsWr{}, &bad), errors.ErrUnsupported)

	cq := must(device.CreateCQ(ibverbs.CQConfig{CompQueue: 4}))(t)
	tagged, err := pd.CreateSRQ(ibverbs.SRQConfig{Type: ibverbs.SRQTypeTagMatching, CQ: cq, RecvQueue: 1, MaxTags: 1, MaxTagOps: 1})
	if err == nil {
		require.NoError(t, tagged.Close())
	}
	if err != nil || found.SoftRoCE() {
		require.ErrorIs(t, err, errors.ErrUnsupported)
	}
	require.NoError(t, cq.Close(), "nothing is left on it")
}
