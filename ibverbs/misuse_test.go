// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"errors"
	"math"
	"os"
	"reflect"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/misuse"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// objects are one of each kind that the device has, parents last.
func (r *rig) objects(t *testing.T) []interface{ Close() error } {
	t.Helper()
	c := must(ibverbs.Open(r.device.Name))(t)
	pd, ch := must(c.AllocPD())(t), must(c.CreateCompChannel())(t)
	cq := must(c.CreateCQ(ibverbs.CQConfig{CompQueue: 4, Channel: ch, Fields: ibverbs.WCStandard}))(t)
	srq := must(pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: 1}))(t)
	config := ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, RecvQueue: 1}
	rc := must(pd.CreateQP(config))(t)
	config.Type, config.SRQ = ibverbs.QPTypeUD, srq
	ud := must(pd.CreateQP(config))(t)
	return []interface{ Close() error }{
		must(pd.Alloc(64, ibverbs.AccessLocalWrite))(t), must(pd.AllocMW(ibverbs.MWType1))(t), must(pd.AllocMW(ibverbs.MWType2))(t),
		must(pd.CreateAH(r.path()))(t), rc, ud, srq, cq, ch, pd, c,
	}
}

// ofTests are methods that only these tests have.
var ofTests = map[string]bool{"SysfsGIDTable": true, "SysfsGIDEntry": true, "UnlessRemoved": true}

// The device's C library meets no closed object and no argument that crashes
// it. tests/provider has this for all kinds of objects that there are.
func TestMisuse(t *testing.T) {
	r := open(t)
	r.have(testdevice.SRQs, testdevice.Windows, testdevice.Datagrams)
	objects := r.objects(t)
	noFile := (*os.File)(nil) // package os panics for one that it has not opened
	call := func(m misuse.Method, args func(reflect.Type) reflect.Value) error {
		_, err := m.Call(args)
		var p *misuse.Panic
		require.False(t, errors.As(err, &p), "%v", err)
		return err
	}
	for _, n := range []int64{0, -1, math.MaxInt64} {
		for _, o := range objects {
			for _, m := range misuse.Methods(o) {
				if m.Name != "Close" && !ofTests[m.Name] {
					_ = call(m, misuse.Filled(n, noFile))
					_ = call(m, misuse.Zero)
				}
			}
		}
	}
	for _, o := range objects {
		require.NoError(t, o.Close())
	}
	for _, o := range objects {
		require.NoError(t, o.Close())
		for _, m := range misuse.Methods(o) {
			err := call(m, misuse.Filled(1, noFile))
			if m.Fails && m.Name != "Close" && !ofTests[m.Name] {
				require.Error(t, err, m.Name)
			}
		}
	}
}

// Requests that the device refuses, however they were posted.
func TestRefusedByDevice(t *testing.T) {
	r := open(t)
	foreign := must(r.c.AllocPD())(t)
	t.Cleanup(func() { require.NoError(t, foreign.Close()) })
	theirs := must(foreign.Alloc(64, fullAccess))(t)
	t.Cleanup(func() { require.NoError(t, theirs.Close()) })
	noAtomics := r.alloc(64, anyAccess)

	for path, ops := range paths {
		for name, tt := range map[string]struct {
			fill   func(s *ibverbs.SendBatch, a, b *end) error
			status ibverbs.WCStatus
			class  ibverbs.WCClass
		}{
			"wrong local key": {
				func(s *ibverbs.SendBatch, _, b *end) error { return s.Read(1, b.mr.Remote(), 0, theirs.All()) },
				ibverbs.WCLocalProtection, ibverbs.WCClassLocalResource,
			},
			"wrong remote key": {
				func(s *ibverbs.SendBatch, a, b *end) error {
					remote := b.mr.Remote()
					remote.RKey ^= 0x5A
					return s.Write(1, remote, 0, a.mr.Sub(0, 8))
				},
				ibverbs.WCRemoteAccess, ibverbs.WCClassRemote,
			},
			"no permission": {
				func(s *ibverbs.SendBatch, a, _ *end) error {
					return s.FetchAdd(1, noAtomics.Remote(), 1, 0, a.mr.Sub(0, 8))
				},
				ibverbs.WCRemoteAccess, ibverbs.WCClassRemote,
			},
			"out of range": {
				func(s *ibverbs.SendBatch, a, b *end) error {
					return s.Read(1, beyond(b.mr.Remote(), mrSize-4, 8), 0, a.mr.Sub(0, 8))
				},
				ibverbs.WCRemoteAccess, ibverbs.WCClassRemote,
			},
		} {
			t.Run(path+"/"+name, func(t *testing.T) {
				r := r.sub(t)
				a, b := r.opPair(ops, fullAccess)
				a.postSend(t, func(s *ibverbs.SendBatch) error { return tt.fill(s, a, b) })
				requireWC(t, collect(t, a.sendCQ, 1)[0], 1, a.qp, tt.status, tt.class)
			})
		}
	}
}

// A request that cannot be right is not posted. With ibv_post_send those before
// it are, with ibv_wr_* none.
func TestRefusedByProvider(t *testing.T) {
	r := open(t)
	for path, ops := range paths {
		t.Run(path, func(t *testing.T) {
			r := r.sub(t)
			a, b := r.opPair(ops, fullAccess)
			check := func(first int, errno, softRoCE syscall.Errno) {
				t.Helper()
				if ops != 0 && r.device.SoftRoCE() {
					errno = softRoCE
				}
				n, err := a.qp.PostSend(a.send)
				var post *ibverbs.PostError
				require.ErrorAs(t, err, &post)
				require.ErrorIs(t, err, errno)
				if ops == 0 {
					require.Equal(t, first, n)
					require.Equal(t, first, post.Index)
					require.False(t, post.None)
				} else {
					require.Zero(t, n)
					require.True(t, post.None)
				}
				collectOK(t, a.sendCQ, n)
			}
			write := func(id uint64, segments ...ibverbs.Segment) error {
				return a.send.Write(id, b.mr.Remote(), ibverbs.SendSignaled, segments...)
			}

			many := make([]ibverbs.Segment, 2*segments) // as many as the batch takes
			for i := range many {
				many[i] = a.mr.Sub(i*8, 8)
			}
			a.send.Reset()
			require.NoError(t, errors.Join(write(1, a.mr.Sub(0, 8)), write(2, many...), write(3, a.mr.Sub(0, 8))))
			check(1, syscall.EINVAL, syscall.ENOSPC)

			a.send.Reset()
			require.NoError(t, errors.Join(write(1), a.send.Write(2, b.mr.Remote(), ibverbs.SendInline, a.mr.Sub(0, 4096))))
			check(1, syscall.EINVAL, syscall.ENOSPC)

			a.send.Reset()
			for i := range uint64(2 * depth) {
				require.NoError(t, write(i, a.mr.Sub(0, 8)))
			}
			if ops != 0 { // nothing is under way, so the queue is too small for certain
				check(0, syscall.ENOMEM, syscall.ENOSPC)
			}

			// And the queue pair is fine.
			a.done(t, func(s *ibverbs.SendBatch) error {
				return s.Write(9, b.mr.Remote(), ibverbs.SendSignaled, a.mr.Sub(0, 8))
			})
		})
	}
}

// An opcode that the type of the queue pair does not have.
func TestWrongOpcode(t *testing.T) {
	r := open(t)
	a, _ := r.opPair(0, fullAccess)
	require.NoError(t, a.send.TSO(1, a.mr.Sub(0, 14), 100, 0, a.mr.Sub(0, 8)))
	if _, err := a.qp.PostSend(a.send); err == nil {
		requireVerdict(t, a.sendCQ, 1, a.qp, unsupported, r)
	} else {
		require.False(t, r.device.SoftRoCE(), "%v", err)
		require.ErrorContains(t, err, "request 0 of the batch (ID 1): ibv_post_send (QP ")
	}

	cq := r.cq(1, nil)
	for _, op := range []libibverbs.QpCreateSendOpsFlags{libibverbs.IBV_QP_EX_WITH_TSO, 1 << 30} {
		_, err := r.pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, SendOps: op})
		require.ErrorIs(t, err, errors.ErrUnsupported)
	}
	qp := r.qp(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, SendOps: libibverbs.IBV_QP_EX_WITH_SEND})
	s := must(ibverbs.NewSendBatch(1, 0))(t)
	require.NoError(t, s.LocalInv(1, 1, 0))
	_, err := qp.PostSend(s)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "request 0 of the batch (ID 1), none was posted")
}
