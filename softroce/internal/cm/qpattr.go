// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// InitQPAttr is rdma_init_qp_attr. It returns the attributes with which
// ibv_modify_qp takes the ID's queue pair to the given state.
func (id *ID) InitQPAttr(to libibverbs.QpState) (attr libibverbs.QpAttr, mask libibverbs.QpAttrMask, err error) {
	switch {
	case id.removed:
		return attr, 0, syscall.ENXIO
	case id.port.Device == nil, to > libibverbs.IBV_QPS_ERR,
		id.state == stateListen && id.qpType != libibverbs.IBV_QPT_UD:
		return attr, 0, syscall.EINVAL
	}
	attr.QpState = to
	mask = libibverbs.IBV_QP_STATE
	c := id.conn
	switch {
	case c == nil || id.qpType == libibverbs.IBV_QPT_UD:
		attr.PortNum = id.port.Num
		mask |= libibverbs.IBV_QP_PKEY_INDEX | libibverbs.IBV_QP_PORT
		if id.qpType == libibverbs.IBV_QPT_UD {
			id.setDefaultQKey()
			attr.Qkey = id.qkey
			mask |= libibverbs.IBV_QP_QKEY
		} else {
			mask |= libibverbs.IBV_QP_ACCESS_FLAGS
		}
	case to == libibverbs.IBV_QPS_INIT && c.connecting():
		attr.PortNum = id.port.Num
		access := libibverbs.IBV_ACCESS_REMOTE_WRITE
		if c.responderResources > 0 {
			access |= libibverbs.IBV_ACCESS_REMOTE_READ | libibverbs.IBV_ACCESS_REMOTE_ATOMIC | id.port.FlushAccess
		}
		attr.QpAccessFlags = access
		mask |= libibverbs.IBV_QP_ACCESS_FLAGS | libibverbs.IBV_QP_PKEY_INDEX | libibverbs.IBV_QP_PORT
	case to == libibverbs.IBV_QPS_RTR && c.connecting() && c.state != connREQSent:
		attr.AhAttr = c.path.ahAttr(id.port)
		attr.PathMtu = c.path.MTU
		attr.DestQpNum = c.remoteQPN
		mask |= libibverbs.IBV_QP_AV | libibverbs.IBV_QP_PATH_MTU | libibverbs.IBV_QP_DEST_QPN | libibverbs.IBV_QP_RQ_PSN
		if id.qpType == libibverbs.IBV_QPT_RC || id.qpType == libibverbs.IBV_QPT_XRC_RECV {
			attr.MaxDestRdAtomic = c.responderResources
			mask |= libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC | libibverbs.IBV_QP_MIN_RNR_TIMER
		}
	case to == libibverbs.IBV_QPS_RTS && c.connecting() && c.state != connREQSent:
		attr.SqPsn = uint32(c.remotePSN)
		mask |= libibverbs.IBV_QP_SQ_PSN
		switch id.qpType {
		case libibverbs.IBV_QPT_RC, libibverbs.IBV_QPT_XRC_SEND:
			attr.RetryCnt, attr.RnrRetry = c.retry, c.rnrRetry
			attr.MaxRdAtomic = c.initiatorDepth
			mask |= libibverbs.IBV_QP_RETRY_CNT | libibverbs.IBV_QP_RNR_RETRY | libibverbs.IBV_QP_MAX_QP_RD_ATOMIC
			fallthrough
		case libibverbs.IBV_QPT_XRC_RECV:
			attr.Timeout = c.ackTimeout
			if id.ackTimeoutSet {
				attr.Timeout = id.ackTimeout
			}
			mask |= libibverbs.IBV_QP_TIMEOUT
		}
	default:
		return attr, 0, syscall.EINVAL
	}
	if to == libibverbs.IBV_QPS_RTR {
		attr.RqPsn = uint32(id.psn)
	}
	return attr, mask, nil
}

// connecting reports whether c is being set up or is established.
func (c *conn) connecting() bool { return c.state >= connREQSent && c.state <= connEstablished }
