// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package vendor

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/libmlx5"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/mlx5"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

func openMLX5(t *testing.T) *rig { return open(t, "libmlx5.so.1") }

func (r *rig) dci(config mlx5.DCIConfig) *mlx5.DCI {
	r.t.Helper()
	config.CQ = r.cq
	return keep(r.t, must(mlx5.CreateDCI(r.pd, config))(r.t))
}

func (r *rig) dct(key uint64) *mlx5.DCT {
	r.t.Helper()
	srq := keep(r.t, must(r.pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: 8}))(r.t))
	return keep(r.t, must(mlx5.CreateDCT(r.pd, mlx5.DCTConfig{CQ: r.cq, SRQ: srq, Key: key}))(r.t))
}

func TestMLX5Query(t *testing.T) {
	r := openMLX5(t)
	supported, err := mlx5.IsSupported(r.device)
	require.NoError(t, err)
	require.True(t, supported)
	require.Equal(t, int64(1), r.driver.Only("mlx5dv_is_supported").Result())

	attr, err := mlx5.Query(r.device)
	require.NoError(t, err)
	require.Equal(t, mlx5.Attr{
		Flags: libmlx5.MLX5DV_CONTEXT_FLAGS_BLUEFLAME, MaxDCReads: 16, MaxDCInitReads: 8,
		MaxLogStreams: 5, MaxLogErroredStreams: 4,
	}, attr, "LAGPorts is not told")
	asked := fakelib.Struct[libmlx5.Context](r.driver.Only("mlx5dv_query_device"), 1)
	require.Equal(t, uint64(libmlx5.MLX5DV_CONTEXT_MASK_MAX_DC_RD_ATOM|libmlx5.MLX5DV_CONTEXT_MASK_DCI_STREAMS|
		libmlx5.MLX5DV_CONTEXT_MASK_NUM_LAG_PORTS), asked.CompMask)
}

// A device of another driver is refused as libmlx5 refuses it.
func TestMLX5Foreign(t *testing.T) {
	r := openMLX5(t)
	srq := keep(t, must(r.pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: 8}))(t))
	r.driver.Next("mlx5dv_is_supported", fakelib.Returns(0, 0))
	supported, err := mlx5.IsSupported(r.device)
	require.NoError(t, err)
	require.False(t, supported)

	r.driver.Next("mlx5dv_query_device", fakelib.Returns(int64(syscall.EOPNOTSUPP), 0))
	require.ErrorIs(t, failed(mlx5.Query(r.device)), errors.ErrUnsupported)
	r.driver.Next("mlx5dv_create_qp", fakelib.Returns(0, syscall.EOPNOTSUPP))
	require.ErrorIs(t, failed(mlx5.CreateDCI(r.pd, mlx5.DCIConfig{CQ: r.cq})), errors.ErrUnsupported)
	r.driver.Next("mlx5dv_create_qp", fakelib.Returns(0, syscall.EOPNOTSUPP))
	require.ErrorIs(t, failed(mlx5.CreateDCT(r.pd, mlx5.DCTConfig{CQ: r.cq, SRQ: srq})), errors.ErrUnsupported)
	require.NotContains(t, r.driver.Names(), "mlx5dv_qp_ex_from_ibv_qp_ex", "C would follow what is no queue pair of its own")
}

func TestDCT(t *testing.T) {
	r := openMLX5(t)
	dct := r.dct(0x1122334455667788)
	call := r.driver.Only("mlx5dv_create_qp")
	init := fakelib.Struct[libmlx5.QpInitAttr](call, 2)
	require.Equal(t, uint64(libmlx5.MLX5DV_QP_INIT_ATTR_MASK_DC), init.CompMask)
	require.Equal(t, libmlx5.MLX5DV_DCTYPE_DCT, init.DcInitAttr.DcType)
	require.EqualValues(t, 0x1122334455667788, *init.DcInitAttr.DctAccessKey())
	attr := fakelib.Struct[libibverbs.QpInitAttrEx](call, 1)
	require.Equal(t, libibverbs.IBV_QPT_DRIVER, attr.QpType)
	require.Equal(t, libibverbs.IBV_QP_INIT_ATTR_PD, attr.CompMask)
	require.NotNil(t, attr.Srq)

	require.Zero(t, dct.Num())
	r.forget()
	from := ibverbs.AHAttr{Port: 1, DLID: 9}
	require.NoError(t, dct.Start(mlx5.DCTPath{Port: 1, MTU: ibverbs.MTU1024, Access: ibverbs.AccessRemoteWrite, From: from}))
	require.Equal(t, dct.Verbs().Num(), dct.Num())
	calls := r.verbs.Calls()
	require.Equal(t, []ibverbs.QPAttrMask{
		ibverbs.QPAttrState | ibverbs.QPAttrPKeyIndex | ibverbs.QPAttrPort | ibverbs.QPAttrAccess,
		ibverbs.QPAttrState | ibverbs.QPAttrPathMTU | ibverbs.QPAttrMinRNRTimer | ibverbs.QPAttrPath,
	}, r.modified())
	rtr := fakelib.Struct[libibverbs.QpAttr](calls[1], 1)
	require.Equal(t, libibverbs.IBV_MTU_1024, rtr.PathMtu)
	require.EqualValues(t, 9, rtr.AhAttr.Dlid)
	require.EqualValues(t, 12, rtr.MinRnrTimer, "0.64 ms")

	for failing, after := range []int{0, 1} {
		for range after {
			r.verbs.Next("ibv_modify_qp")
		}
		r.verbs.Next("ibv_modify_qp", fakelib.Returns(int64(syscall.EINVAL), 0))
		require.ErrorIs(t, dct.Start(mlx5.DCTPath{Port: 1, MTU: ibverbs.MTU1024, From: from}), syscall.EINVAL, failing)
	}
}

func TestDCI(t *testing.T) {
	for name, tt := range map[string]struct {
		config  mlx5.DCIConfig
		mask    libmlx5.QpInitAttrMask
		streams libmlx5.DciStreams
		address string
	}{
		"plain": {mlx5.DCIConfig{SendQueue: 3}, libmlx5.MLX5DV_QP_INIT_ATTR_MASK_DC, libmlx5.DciStreams{}, "mlx5dv_wr_set_dc_addr"},
		"streams": {
			mlx5.DCIConfig{SendQueue: 3, LogStreams: 4, LogErrored: 2},
			libmlx5.MLX5DV_QP_INIT_ATTR_MASK_DC | libmlx5.MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS,
			libmlx5.DciStreams{LogNumConcurent: 4, LogNumErrored: 2}, "mlx5dv_wr_set_dc_addr_stream",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := openMLX5(t)
			dci := r.dci(tt.config)
			require.Equal(t, []string{"mlx5dv_create_qp", "mlx5dv_qp_ex_from_ibv_qp_ex"}, r.driver.Names())
			init := fakelib.Struct[libmlx5.QpInitAttr](r.driver.Calls()[0], 2)
			require.Equal(t, uint64(tt.mask), init.CompMask)
			require.Equal(t, libmlx5.MLX5DV_DCTYPE_DCI, init.DcInitAttr.DcType)
			require.Equal(t, tt.streams, *init.DcInitAttr.DciStreams())

			r.forget()
			require.NoError(t, dci.Start(mlx5.DCIPath{Port: 1, MTU: ibverbs.MTU512, RNRRetryCount: -1, MaxReads: 2, SendPSN: 3}))
			calls := r.verbs.Calls()
			require.Equal(t, []ibverbs.QPAttrMask{
				ibverbs.QPAttrState | ibverbs.QPAttrPKeyIndex | ibverbs.QPAttrPort,
				ibverbs.QPAttrState | ibverbs.QPAttrPathMTU,
				ibverbs.QPAttrState | ibverbs.QPAttrSendPSN | ibverbs.QPAttrTimeout | ibverbs.QPAttrRetryCount |
					ibverbs.QPAttrRNRRetryCount | ibverbs.QPAttrMaxReadAtomic,
			}, r.modified())
			rts := fakelib.Struct[libibverbs.QpAttr](calls[2], 1)
			require.Equal(t, []uint8{6, 0, 2, 14}, []uint8{rts.RetryCnt, rts.RnrRetry, rts.MaxRdAtomic, rts.Timeout})

			r.forget()
			to := mlx5.Target{AH: r.ah, Num: 0x123456, Key: 0x8877665544332211, Stream: 3}
			require.NoError(t, dci.Post(
				mlx5.Request{Op: mlx5.Send, ID: 1, To: to, Segments: []ibverbs.Segment{r.mr.All()}},
				mlx5.Request{Op: mlx5.Write, ID: 2, To: to, Remote: ibverbs.RemoteBuffer{Addr: 1, RKey: 2, Len: 8}, Segments: []ibverbs.Segment{r.mr.Sub(0, 8)}},
			))
			require.Equal(t, []string{
				"ibv_wr_start", "ibv_wr_send", "ibv_wr_set_sge_list", "ibv_wr_rdma_write", "ibv_wr_set_sge_list", "ibv_wr_complete",
			}, r.verbs.Names())
			require.Equal(t, []string{tt.address, tt.address}, r.driver.Names())
			for _, call := range r.driver.Calls() {
				var key uint64 = 0x8877665544332211
				want := []int64{0x123456, int64(key)}
				require.Equal(t, want, call.Args()[2:4])
				if tt.config.LogStreams != 0 {
					require.EqualValues(t, 3, call.Arg(4))
				}
			}
			require.NoError(t, dci.ResetStream(3))
		})
	}
}

// A library that is too old for the operations of a queue pair leaves them out.
func TestDCIWithoutOperation(t *testing.T) {
	r := openMLX5(t)
	var ex libmlx5.QpEx // has none
	r.driver.Next("mlx5dv_qp_ex_from_ibv_qp_ex", fakelib.Returns(address(&ex), 0))
	dci := r.dci(mlx5.DCIConfig{})
	r.forget()
	err := dci.Post(mlx5.Request{Op: mlx5.Send, ID: 9, To: mlx5.Target{AH: r.ah}})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	var post *ibverbs.PostError
	require.ErrorAs(t, err, &post)
	require.EqualValues(t, 9, post.ID)
	require.Equal(t, []string{"ibv_wr_start", "ibv_wr_send", "ibv_wr_abort"}, r.verbs.Names())
	require.Empty(t, r.driver.Names())

	r.driver.Next("mlx5dv_qp_ex_from_ibv_qp_ex", fakelib.Returns(0, 0))
	require.ErrorIs(t, failed(mlx5.CreateDCI(r.pd, mlx5.DCIConfig{CQ: r.cq})), errors.ErrUnsupported)
}

// Posts of several goroutines are whole: none gets between another's start and
// complete.
func TestDCIConcurrently(t *testing.T) {
	r := openMLX5(t)
	dci := r.dci(mlx5.DCIConfig{})
	r.forget()
	var group sync.WaitGroup
	const posts = 50
	for range 4 {
		group.Go(func() {
			for range posts {
				if err := dci.Post(mlx5.Request{Op: mlx5.Send, To: mlx5.Target{AH: r.ah}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	names := r.verbs.Names()
	require.Len(t, names, 4*posts*3)
	for i := 0; i < len(names); i += 3 {
		require.Equal(t, []string{"ibv_wr_start", "ibv_wr_send", "ibv_wr_complete"}, names[i:i+3])
	}
}

// Nil and closed objects answer with an error.
func TestMLX5NotMade(t *testing.T) {
	r := openMLX5(t)
	closedI, closedT := r.dci(mlx5.DCIConfig{}), r.dct(1)
	require.NoError(t, closedI.Close())
	require.NoError(t, closedT.Close())
	r.forget()
	for name, tt := range map[string]struct {
		dci  *mlx5.DCI
		dct  *mlx5.DCT
		want error
	}{
		"nil": {nil, nil, os.ErrInvalid}, "zero": {new(mlx5.DCI), new(mlx5.DCT), os.ErrInvalid}, "closed": {closedI, closedT, os.ErrClosed},
	} {
		for call, err := range map[string]error{
			"DCI.Start": tt.dci.Start(mlx5.DCIPath{Timeout: time.Second}), "DCI.Post": tt.dci.Post(mlx5.Request{}),
			"DCI.ResetStream": tt.dci.ResetStream(1), "DCT.Start": tt.dct.Start(mlx5.DCTPath{}),
		} {
			require.ErrorIs(t, err, tt.want, "%s: %s", name, call)
		}
		require.Zero(t, tt.dct.Num())
	}
	require.ErrorIs(t, failed(mlx5.IsSupported(nil)), os.ErrInvalid)
	require.ErrorIs(t, failed(mlx5.Query(nil)), os.ErrInvalid)
	require.ErrorIs(t, failed(mlx5.CreateDCI(nil, mlx5.DCIConfig{})), os.ErrInvalid)
	require.ErrorIs(t, failed(mlx5.CreateDCT(r.pd, mlx5.DCTConfig{CQ: r.cq})), syscall.EINVAL, "no shared receive queue")
	require.Empty(t, r.driver.Names())
}
