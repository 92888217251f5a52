// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// AWS's EFA has datagrams and no connections. Its driver refuses a query of
// attributes that only connections have, and to arm a queue for solicited
// completions.
func TestLikeEFA(t *testing.T) {
	if !testdevice.LimitedTo(t, "efa") {
		return
	}
	r := open(t)
	cq := r.cq(8, r.channel())
	_, err := r.pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, RecvQueue: 1})
	require.ErrorIs(t, err, errors.ErrUnsupported)

	a, b := r.typedEnd(ibverbs.QPConfig{Type: ibverbs.QPTypeUD}), r.typedEnd(ibverbs.QPConfig{Type: ibverbs.QPTypeUD})
	for _, e := range []*end{a, b} {
		r.bring(e.qp, 0, ibverbs.QPStateRTS)
		attr, err := e.qp.Query()
		require.NoError(t, err)
		require.Equal(t, ibverbs.QPStateRTS, attr.State)
		require.EqualValues(t, qkey, attr.QKey)
		require.EqualValues(t, 1, attr.Port)
		state, err := e.qp.State()
		require.NoError(t, err)
		require.Equal(t, ibverbs.QPStateRTS, state)
	}
	exchange(t, a, b)

	quiet, err := r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 1, Channel: r.channel(), SolicitedOnly: true})
	require.NoError(t, err)
	r.cleanup(quiet)
	_, err = quiet.Wait(limit(t), make([]ibverbs.WC, 1))
	require.ErrorIs(t, err, errors.ErrUnsupported)

	require.NoError(t, a.qp.SetError())
	a.recv.Reset()
	require.NoError(t, a.recv.Recv(1, a.mr.Sub(0, 100)))
	_, err = a.qp.PostRecv(a.recv)
	require.ErrorIs(t, err, syscall.EINVAL)
}

// Microsoft's MANA has reliable connections only, and its queue pairs cannot be
// queried.
func TestLikeMANA(t *testing.T) {
	if !testdevice.LimitedTo(t, "mana") {
		return
	}
	r := open(t)
	a, b := r.pair(nil)
	exchange(t, a, b)
	_, err := a.qp.Query()
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = a.qp.State()
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.NoError(t, a.qp.SetError())
	a.recv.Reset()
	require.NoError(t, a.recv.Recv(1))
	_, err = a.qp.PostRecv(a.recv)
	require.ErrorIs(t, err, syscall.EINVAL)
}

// The driver for MANA takes SendInline and ignores it, so that no queue pair
// may have inline data there.
func TestInlineOnMANA(t *testing.T) {
	r := open(t)
	r.have(testdevice.Inline(16))
	cq := r.cq(4, nil)
	config := ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, RecvQueue: 1, MaxInline: 16}
	files, path := t.TempDir(), &r.c.Raw().Device.IbdevPath
	require.NoError(t, os.Mkdir(filepath.Join(files, "device"), 0o700))
	before := *path
	t.Cleanup(func() { *path = before })
	*path = [256]byte{}
	copy(path[:], files)
	for driver, refused := range map[string]bool{"mana": true, "mlx5_core": false} {
		link := filepath.Join(files, "device", "driver")
		require.NoError(t, os.Symlink("../../bus/pci/drivers/"+driver, link))
		config.MaxInline = 16
		qp, err := r.pd.CreateQP(config)
		if refused {
			require.ErrorIs(t, err, syscall.EINVAL)
			require.ErrorContains(t, err, "MaxInline is 16, and the driver of "+r.device.Name+" has no inline data")
			config.MaxInline = 0
			qp, err = r.pd.CreateQP(config)
		}
		require.NoError(t, err)
		require.NoError(t, qp.Close())
		require.NoError(t, os.Remove(link))
	}
}
