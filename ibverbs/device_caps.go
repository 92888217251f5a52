package ibverbs

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// DeviceCaps says what a device can do. Flags that have no name here are
// those of libibverbs.DeviceCapFlags.
type DeviceCaps uint64

// Flags of devices.
const (
	DeviceSRQResize          DeviceCaps = DeviceCaps(libibverbs.IBV_DEVICE_SRQ_RESIZE)
	DeviceMemWindow          DeviceCaps = DeviceCaps(libibverbs.IBV_DEVICE_MEM_WINDOW) // of MWType1
	DeviceMemWindow2A        DeviceCaps = DeviceCaps(libibverbs.IBV_DEVICE_MEM_WINDOW_TYPE_2A)
	DeviceMemWindow2B        DeviceCaps = DeviceCaps(libibverbs.IBV_DEVICE_MEM_WINDOW_TYPE_2B)
	DeviceUDIPChecksum       DeviceCaps = DeviceCaps(libibverbs.IBV_DEVICE_UD_IP_CSUM)
	DeviceRawIPChecksum      DeviceCaps = DeviceCaps(libibverbs.IBV_DEVICE_RAW_IP_CSUM)
	DeviceXRC                DeviceCaps = DeviceCaps(libibverbs.IBV_DEVICE_XRC)
	DeviceMemMgtExtensions   DeviceCaps = DeviceCaps(libibverbs.IBV_DEVICE_MEM_MGT_EXTENSIONS) // requests that invalidate keys
	DeviceFlowSteering       DeviceCaps = DeviceCaps(libibverbs.IBV_DEVICE_MANAGED_FLOW_STEERING)
	DeviceRawScatterFCS      DeviceCaps = libibverbs.IBV_DEVICE_RAW_SCATTER_FCS
	DevicePCIWriteEndPadding DeviceCaps = libibverbs.IBV_DEVICE_PCI_WRITE_END_PADDING
	DeviceCCDMABounce        DeviceCaps = libibverbs.IBV_DEVICE_CC_DMA_BOUNCE // memory goes through bounce buffers
)

var upperCaps = []struct {
	flag DeviceCaps
	name string
}{
	{DeviceRawScatterFCS, "IBV_DEVICE_RAW_SCATTER_FCS"},
	{DevicePCIWriteEndPadding, "IBV_DEVICE_PCI_WRITE_END_PADDING"},
	{DeviceCCDMABounce, "IBV_DEVICE_CC_DMA_BOUNCE"},
}

// String returns the names of the flags, joined with |.
func (d DeviceCaps) String() string {
	var parts []string
	upper := d >> 32 << 32
	for _, c := range upperCaps {
		if upper&c.flag != 0 {
			parts = append(parts, c.name)
			upper &^= c.flag
		}
	}
	if upper != 0 {
		parts = append(parts, fmt.Sprintf("%#x", uint64(upper)))
	}
	if lower := libibverbs.DeviceCapFlags(d); lower != 0 || len(parts) == 0 {
		parts = append([]string{lower.String()}, parts...)
	}
	return strings.Join(parts, "|")
}

// MarshalText is String.
func (d DeviceCaps) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what String gives.
func (d *DeviceCaps) UnmarshalText(text []byte) error {
	var all DeviceCaps
	for part := range strings.SplitSeq(string(text), "|") {
		flag, err := parseDeviceCap(part)
		if err != nil {
			return err
		}
		all |= flag
	}
	*d = all
	return nil
}

func parseDeviceCap(s string) (DeviceCaps, error) {
	for _, c := range upperCaps {
		if c.name == s {
			return c.flag, nil
		}
	}
	if n, err := strconv.ParseUint(s, 0, 64); err == nil {
		return DeviceCaps(n), nil
	}
	lower, err := libibverbs.ParseDeviceCapFlags(s)
	return DeviceCaps(lower), err
}

// QPTypes is a set of types of queue pairs.
type QPTypes uint32

// Has reports whether the type is in the set.
func (q QPTypes) Has(t QPType) bool { return t < 32 && q&(1<<t) != 0 }

// String returns the names of the types, joined with |.
func (q QPTypes) String() string {
	if q == 0 {
		return "0"
	}
	var parts []string
	for rest := uint32(q); rest != 0; rest &= rest - 1 {
		parts = append(parts, QPType(bits.TrailingZeros32(rest)).String())
	}
	return strings.Join(parts, "|")
}

// MarshalText is String.
func (q QPTypes) MarshalText() ([]byte, error) { return []byte(q.String()), nil }

// UnmarshalText reads what String gives.
func (q *QPTypes) UnmarshalText(text []byte) error {
	if string(text) == "0" {
		*q = 0
		return nil
	}
	var all QPTypes
	for part := range strings.SplitSeq(string(text), "|") {
		t, err := libibverbs.ParseQpType(part)
		if err != nil {
			return err
		}
		if t >= 32 {
			return fmt.Errorf("%s cannot be in a set of QP types", t)
		}
		all |= 1 << t
	}
	*q = all
	return nil
}
