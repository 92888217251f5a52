// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

func fakeCQ() *CQ { return &CQ{raw: &libibverbs.Cq{}} }

func TestBadQPConfig(t *testing.T) {
	cq, srq, xrcd := fakeCQ(), &SRQ{}, &XRCD{}
	tests := map[string]struct {
		config QPConfig
		want   string
	}{
		"nothing":               {QPConfig{}, "SendCQ or RecvCQ is nil"},
		"no receive CQ":         {QPConfig{SendCQ: cq}, "SendCQ or RecvCQ is nil"},
		"no receive CQ but SRQ": {QPConfig{SendCQ: cq, SRQ: srq}, "SendCQ or RecvCQ is nil"},
		"no send CQ":            {QPConfig{Type: QPTypeUD, RecvCQ: cq}, "SendCQ or RecvCQ is nil"},
		"unknown":               {QPConfig{Type: 1, SendCQ: cq, RecvCQ: cq}, "Type is QpType(1)"},
		"negative":              {QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: -1}, "SendQueue is -1, not from 0 to 2147483647"},
		"too large":             {QPConfig{SendCQ: cq, RecvCQ: cq, MaxInline: tooLarge}, fmt.Sprint("MaxInline is ", tooLarge)},
		"header":                {QPConfig{SendCQ: cq, RecvCQ: cq, MaxTSOHeader: 1 << 16}, "MaxTSOHeader is 65536, not from 0 to 65535"},
		"source":                {QPConfig{SendCQ: cq, RecvCQ: cq, SourceQPNum: 5}, "SourceQPNum is 5, and CreateFlags lacks"},
		"large source": {
			QPConfig{SendCQ: cq, RecvCQ: cq, SourceQPNum: 1 << 24, CreateFlags: QPCreateSourceQPNum}, "SourceQPNum is 16777216, not from",
		},
		"domain":               {QPConfig{SendCQ: cq, RecvCQ: cq, XRCD: xrcd}, "Type is IBV_QPT_RC, and XRCD is for QPTypeXRCRecv alone"},
		"XRC send without CQ":  {QPConfig{Type: QPTypeXRCSend}, "QPTypeXRCSend needs SendCQ"},
		"XRC send with SRQ":    {QPConfig{Type: QPTypeXRCSend, SendCQ: cq, SRQ: srq}, "QPTypeXRCSend takes no SRQ"},
		"XRC send with domain": {QPConfig{Type: QPTypeXRCSend, SendCQ: cq, XRCD: xrcd}, "Type is IBV_QPT_XRC_SEND, and XRCD is for"},
		"XRC recv":             {QPConfig{Type: QPTypeXRCRecv}, "QPTypeXRCRecv needs XRCD"},
		"XRC recv with CQ":     {QPConfig{Type: QPTypeXRCRecv, XRCD: xrcd, RecvCQ: cq}, "QPTypeXRCRecv needs XRCD"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := tt.config.initAttr()
			require.ErrorContains(t, err, tt.want)
			require.ErrorIs(t, err, syscall.EINVAL)
		})
	}
}

func TestQPConfigAsCTakesIt(t *testing.T) {
	cq := fakeCQ()
	pd := &PD{raw: &libibverbs.Pd{}}
	xrcd := &XRCD{raw: &libibverbs.Xrcd{}}
	srq := &SRQ{raw: &libibverbs.Srq{}}
	const maskPD = libibverbs.IBV_QP_INIT_ATTR_PD
	tests := map[string]struct {
		config QPConfig
		want   libibverbs.QpInitAttrEx
	}{
		"plain": {
			QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, RecvQueue: 2, SendSegments: 3, RecvSegments: 4, MaxInline: 5, SignalAll: true},
			libibverbs.QpInitAttrEx{
				QpType: QPTypeRC, SendCq: cq.raw, RecvCq: cq.raw, Pd: pd.raw, CompMask: maskPD, SqSigAll: 1,
				Cap: libibverbs.QpCap{MaxSendWr: 1, MaxRecvWr: 2, MaxSendSge: 3, MaxRecvSge: 4, MaxInlineData: 5},
			},
		},
		"SRQ": {
			QPConfig{Type: QPTypeUC, SendCQ: cq, RecvCQ: cq, SendQueue: 1, RecvQueue: 2, SRQ: srq},
			libibverbs.QpInitAttrEx{
				QpType: QPTypeUC, SendCq: cq.raw, RecvCq: cq.raw, Srq: srq.raw, Pd: pd.raw, CompMask: maskPD,
				Cap: libibverbs.QpCap{MaxSendWr: 1, MaxSendSge: 1},
			},
		},
		"extended": {
			QPConfig{
				Type: QPTypeRawPacket, SendCQ: cq, RecvCQ: cq, CreateFlags: QPCreateScatterFCS | QPCreateSourceQPNum,
				SourceQPNum: 77, MaxTSOHeader: 64, SendOps: libibverbs.IBV_QP_EX_WITH_SEND,
			},
			libibverbs.QpInitAttrEx{
				QpType: QPTypeRawPacket, SendCq: cq.raw, RecvCq: cq.raw, Pd: pd.raw,
				CompMask: maskPD | libibverbs.IBV_QP_INIT_ATTR_CREATE_FLAGS |
					libibverbs.IBV_QP_INIT_ATTR_MAX_TSO_HEADER | libibverbs.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
				Cap:         libibverbs.QpCap{MaxSendSge: 1, MaxRecvSge: 1},
				CreateFlags: 0x500, SourceQpn: 77, MaxTsoHeader: 64, SendOpsFlags: 4,
			},
		},
		"XRC send": {
			QPConfig{Type: QPTypeXRCSend, SendCQ: cq, SendQueue: 9, RecvQueue: 9},
			libibverbs.QpInitAttrEx{
				QpType: QPTypeXRCSend, SendCq: cq.raw, Pd: pd.raw, CompMask: maskPD,
				Cap: libibverbs.QpCap{MaxSendWr: 9, MaxSendSge: 1},
			},
		},
		"XRC receive": {
			QPConfig{Type: QPTypeXRCRecv, XRCD: xrcd},
			libibverbs.QpInitAttrEx{
				QpType: QPTypeXRCRecv, Xrcd: xrcd.raw, CompMask: libibverbs.IBV_QP_INIT_ATTR_XRCD,
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := tt.config.initAttrEx(pd)
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

func TestBadSRQConfig(t *testing.T) {
	pd := &PD{device: &Device{}}
	pd.object.InitUnlisted("fake PD")
	xrcd := &XRCD{device: pd.device}
	cq := &CQ{device: pd.device}
	xrcd.object.InitUnlisted("fake XRCD")
	cq.object.InitUnlisted("fake CQ")
	for want, config := range map[string]SRQConfig{
		"RecvQueue is 0, not from 1":                              {},
		"RecvSegments is -1, not from 0":                          {RecvQueue: 1, RecvSegments: -1},
		fmt.Sprint("RecvQueue is ", tooLarge):                     {RecvQueue: tooLarge},
		"MaxTags is -1, not from 0":                               {RecvQueue: 1, MaxTags: -1},
		"Type is SrqType(3)":                                      {RecvQueue: 1, Type: 3},
		"XRCD is needed for SRQTypeXRC":                           {RecvQueue: 1, XRCD: xrcd},
		"XRCD is needed for SRQTypeXRC, and for no other":         {RecvQueue: 1, Type: SRQTypeXRC, CQ: cq},
		"CQ is needed for all types but":                          {RecvQueue: 1, CQ: cq},
		"CQ is needed for all types but SRQTypeBasic":             {RecvQueue: 1, Type: SRQTypeTagMatching, MaxTags: 1, MaxTagOps: 1},
		"MaxTags and MaxTagOps are needed":                        {RecvQueue: 1, Type: SRQTypeTagMatching, CQ: cq, MaxTags: 1},
		"MaxTags and MaxTagOps are needed for SRQTypeTagMatching": {RecvQueue: 1, MaxTags: 1},
	} {
		_, err := pd.CreateSRQ(config)
		require.ErrorContains(t, err, "ibv_create_srq (fake PD): "+want)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
}

// Methods of objects that are nil, or were not made by this package, fail.
func TestQueuesThatNobodyMade(t *testing.T) {
	for _, qp := range []*QP{nil, {}} {
		_, stateErr := qp.State()
		_, queryErr := qp.Query()
		_, eceErr := qp.QueryECE()
		_, orderErr := qp.DataInOrder(0)
		for i, err := range []error{
			stateErr, queryErr, eceErr, orderErr, qp.Modify(QPAttr{}, 0), qp.ToInit(InitAttr{}),
			qp.ToRTR(RTRAttr{}), qp.ToRTS(RTSAttr{}), qp.ToSQD(true), qp.Resume(), qp.ToReset(), qp.SetError(), qp.SetECE(ECE{}),
			qp.SetRateLimit(RateLimit{}), qp.AttachMulticast(GID{}, 0), qp.DetachMulticast(GID{}, 0), qp.Close(),
		} {
			require.ErrorIs(t, err, os.ErrInvalid, i)
		}
	}
	for _, srq := range []*SRQ{nil, {}} {
		_, numErr := srq.Num()
		_, queryErr := srq.Query()
		_, postErr := srq.PostRecv(nil)
		for i, err := range []error{numErr, queryErr, postErr, srq.SetLimit(1), srq.Resize(1), srq.Close()} {
			require.ErrorIs(t, err, os.ErrInvalid, i)
		}
	}
	_, openErr := (*XRCD)(nil).OpenQP(1)
	_, xrcdErr := (*Device)(nil).OpenXRCD(XRCDConfig{})
	_, srqErr := (*PD)(nil).CreateSRQ(SRQConfig{})
	_, ahErr := (*PD)(nil).CreateAH(AHAttr{})
	_, wcErr := (*PD)(nil).CreateAHFromWC(nil, nil, 1)
	_, initErr := (*Device)(nil).AHAttrFromWC(nil, nil, 1)
	for i, err := range []error{
		openErr, xrcdErr, srqErr, ahErr, wcErr, initErr, (*XRCD)(nil).Close(), (&XRCD{}).Close(), (*AH)(nil).Close(), (&AH{}).Close(),
	} {
		require.ErrorIs(t, err, os.ErrInvalid, i)
	}
}

// Queue pairs of a driver's own type are made by another package, with its
// library.
func TestDriverQPConfig(t *testing.T) {
	config := QPConfig{Type: libibverbs.IBV_QPT_DRIVER}
	require.ErrorContains(t, config.notDriver(new(PD)), "Type is IBV_QPT_DRIVER; queue pairs of drivers' own types are made by packages efa and mlx5")
	require.NoError(t, QPConfig{}.notDriver(new(PD)))
	require.NoError(t, config.notDriver(nil), "which is refused for another reason")
}
