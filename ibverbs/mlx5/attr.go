// SPDX-License-Identifier: Apache-2.0

package mlx5

import (
	"github.com/verbena-go/verbena/generated/libmlx5"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
)

// Flags are properties of an adapter, combined with |. Package libmlx5 has the
// values, such as MLX5DV_CONTEXT_FLAGS_ENHANCED_MPW.
type Flags = libmlx5.ContextFlags

// Attr describes an adapter. Fields that the adapter or the library does not
// report are 0.
type Attr struct {
	Flags Flags

	// MaxDCReads limits the RDMA reads and atomics that a target has in
	// progress for one initiator. MaxDCInitReads limits those that an
	// initiator has in progress.
	MaxDCReads, MaxDCInitReads uint64

	// MaxLogStreams is the binary logarithm of the maximum number of
	// streams of an initiator. MaxLogErroredStreams is the binary logarithm
	// of the maximum number of failed streams that an initiator tolerates;
	// see DCIConfig.
	MaxLogStreams, MaxLogErroredStreams uint8

	LAGPorts int // number of bonded ports
}

// IsSupported reports whether mlx5 is the driver of the device; see
// mlx5dv_is_supported(3).
func IsSupported(device *ibverbs.Device) (bool, error) {
	o := sibling.ObjectOf(device)
	if err := o.Use(); err != nil {
		return false, err
	}
	defer o.Done()
	return libmlx5.IsSupported(device.Raw().Device)
}

// Query returns the limits and properties of an adapter; see
// mlx5dv_query_device(3).
func Query(device *ibverbs.Device) (Attr, error) {
	o := sibling.ObjectOf(device)
	if err := o.Use(); err != nil {
		return Attr{}, err
	}
	defer o.Done()
	const dc, streams, lag = libmlx5.MLX5DV_CONTEXT_MASK_MAX_DC_RD_ATOM, libmlx5.MLX5DV_CONTEXT_MASK_DCI_STREAMS,
		libmlx5.MLX5DV_CONTEXT_MASK_NUM_LAG_PORTS
	raw := libmlx5.Context{CompMask: uint64(dc | streams | lag)}
	if err := libmlx5.QueryDevice(device.Raw(), &raw); err != nil {
		return Attr{}, sibling.Wrap(device.Name(), err)
	}
	attr := Attr{Flags: Flags(raw.Flags)} // raw's mask now has the bits of what the library has reported
	told := libmlx5.ContextCompMask(raw.CompMask)
	if told&dc != 0 {
		attr.MaxDCReads, attr.MaxDCInitReads = raw.MaxDcRdAtom, raw.MaxDcInitRdAtom
	}
	if told&streams != 0 {
		attr.MaxLogStreams, attr.MaxLogErroredStreams = raw.DciStreamsCaps.MaxLogNumConcurent, raw.DciStreamsCaps.MaxLogNumErrored
	}
	if told&lag != 0 {
		attr.LAGPorts = int(raw.NumLagPorts)
	}
	return attr, nil
}
