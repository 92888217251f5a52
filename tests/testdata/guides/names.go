// Package fragment has what the guides' pieces of Go take for granted.
package fragment

import (
	"context"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

var (
	ctx     context.Context
	device  *ibverbs.Device
	pd      *ibverbs.PD
	cq      *ibverbs.CQ
	qp      *ibverbs.QP
	wcs     []ibverbs.WC
	batch   *ibverbs.SendBatch
	region  *ibverbs.MR
	conn    *rdmacm.Conn
	conns   map[uint32]*rdmacm.Conn
	request *rdmacm.Request
	into    ibverbs.Segment
	from    ibverbs.RemoteBuffer
	err     error
)
