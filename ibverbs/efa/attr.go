// SPDX-License-Identifier: Apache-2.0

package efa

import (
	"unsafe"

	"github.com/verbena-go/verbena/generated/libefa"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
)

// Caps are capabilities of an adapter, combined with |.
type Caps = libefa.DeviceCaps

// The capabilities of adapters.
const (
	CapRDMARead             Caps = libefa.EFADV_DEVICE_ATTR_CAPS_RDMA_READ
	CapRNRRetry             Caps = libefa.EFADV_DEVICE_ATTR_CAPS_RNR_RETRY // a sender retries until the peer has posted a receive
	CapCQWithSGID           Caps = libefa.EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID
	CapRDMAWrite            Caps = libefa.EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE
	CapUnsolicitedWriteRecv Caps = libefa.EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV // a WriteImm completes no receive of the peer
	CapCQInDMABuf           Caps = libefa.EFADV_DEVICE_ATTR_CAPS_CQ_WITH_EXT_MEM_DMABUF
	CapCompletionCounters   Caps = libefa.EFADV_DEVICE_ATTR_CAPS_COMP_CNTR
)

// Attr describes an adapter.
type Attr struct {
	MaxSendWR, MaxRecvWR   int // maximum numbers of posted requests of a queue pair
	MaxSendSGE, MaxRecvSGE int // maximum numbers of segments in a request
	InlineSize             int // maximum number of inline bytes in a request
	MaxRDMASize            int // maximum number of bytes in an RDMA read or write; 0 means that neither is supported
	Caps                   Caps
}

// Query returns the limits and capabilities of an adapter; see
// efadv_query_device(3). If the device is not an Elastic Fabric Adapter, the
// error matches errors.ErrUnsupported.
func Query(device *ibverbs.Device) (Attr, error) {
	o := sibling.ObjectOf(device)
	if err := o.Use(); err != nil {
		return Attr{}, err
	}
	defer o.Done()
	var raw libefa.DeviceAttr
	if err := libefa.QueryDevice(device.Raw(), &raw, uint32(unsafe.Sizeof(raw))); err != nil {
		return Attr{}, sibling.Wrap(device.Name(), err)
	}
	return Attr{
		MaxSendWR: int(raw.MaxSqWr), MaxRecvWR: int(raw.MaxRqWr), MaxSendSGE: int(raw.MaxSqSge), MaxRecvSGE: int(raw.MaxRqSge),
		InlineSize: int(raw.InlineBufSize), MaxRDMASize: int(raw.MaxRdmaSize), Caps: raw.DeviceCaps,
	}, nil
}

// Number returns the number that the adapter has given to an address handle;
// see efadv_query_ah(3). The completion of a receive contains the number of the
// sender's address handle.
func Number(ah *ibverbs.AH) (uint16, error) {
	o := sibling.ObjectOf(ah)
	if err := o.Use(); err != nil {
		return 0, err
	}
	defer o.Done()
	var raw libefa.AhAttr
	if err := libefa.QueryAh(ah.Raw(), &raw, uint32(unsafe.Sizeof(raw))); err != nil {
		return 0, sibling.Wrap(o.Name(), err)
	}
	return raw.Ahn, nil
}
