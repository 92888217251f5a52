// SPDX-License-Identifier: Apache-2.0

package caps

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// Flags is a set of device capabilities. For capabilities without a name here,
// see libibverbs.DeviceCapFlags.
type Flags uint64

// The capabilities of devices.
const (
	SRQResize          Flags = Flags(libibverbs.IBV_DEVICE_SRQ_RESIZE)            // ibverbs.SRQ.Resize
	MemWindow          Flags = Flags(libibverbs.IBV_DEVICE_MEM_WINDOW)            // ibverbs.MWType1 memory windows
	MemWindow2A        Flags = Flags(libibverbs.IBV_DEVICE_MEM_WINDOW_TYPE_2A)    // ibverbs.MWType2 memory windows, bound to a queue pair's number
	MemWindow2B        Flags = Flags(libibverbs.IBV_DEVICE_MEM_WINDOW_TYPE_2B)    // ibverbs.MWType2 memory windows, bound to a queue pair and its domain
	UDIPChecksum       Flags = Flags(libibverbs.IBV_DEVICE_UD_IP_CSUM)            // checks and computes checksums of IP packets for ibverbs.QPTypeUD
	RawIPChecksum      Flags = Flags(libibverbs.IBV_DEVICE_RAW_IP_CSUM)           // checks and computes checksums of IP packets for ibverbs.QPTypeRawPacket
	XRC                Flags = Flags(libibverbs.IBV_DEVICE_XRC)                   // extended reliable connections
	MemMgtExtensions   Flags = Flags(libibverbs.IBV_DEVICE_MEM_MGT_EXTENSIONS)    // requests that invalidate memory keys
	FlowSteering       Flags = Flags(libibverbs.IBV_DEVICE_MANAGED_FLOW_STEERING) // rules of package flow
	RawScatterFCS      Flags = libibverbs.IBV_DEVICE_RAW_SCATTER_FCS              // received frames can keep their frame check sequence
	PCIWriteEndPadding Flags = libibverbs.IBV_DEVICE_PCI_WRITE_END_PADDING        // can fill whole cache lines when it writes
	CCDMABounce        Flags = libibverbs.IBV_DEVICE_CC_DMA_BOUNCE                // DMA goes through bounce buffers
)

var upperFlags = []struct {
	flag Flags
	name string
}{
	{RawScatterFCS, "IBV_DEVICE_RAW_SCATTER_FCS"},
	{PCIWriteEndPadding, "IBV_DEVICE_PCI_WRITE_END_PADDING"},
	{CCDMABounce, "IBV_DEVICE_CC_DMA_BOUNCE"},
}

// String returns the names of the flags, joined with |.
func (f Flags) String() string {
	var parts []string
	upper := f >> 32 << 32
	for _, c := range upperFlags {
		if upper&c.flag != 0 {
			parts = append(parts, c.name)
			upper &^= c.flag
		}
	}
	if upper != 0 {
		parts = append(parts, fmt.Sprintf("%#x", uint64(upper)))
	}
	if lower := libibverbs.DeviceCapFlags(f); lower != 0 || len(parts) == 0 {
		parts = append([]string{lower.String()}, parts...)
	}
	return strings.Join(parts, "|")
}

// MarshalText returns the text of String.
func (f Flags) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText parses the output of String.
func (f *Flags) UnmarshalText(text []byte) error {
	var all Flags
	for part := range strings.SplitSeq(string(text), "|") {
		flag, err := parseFlag(part)
		if err != nil {
			return err
		}
		all |= flag
	}
	*f = all
	return nil
}

func parseFlag(s string) (Flags, error) {
	for _, c := range upperFlags {
		if c.name == s {
			return c.flag, nil
		}
	}
	if n, err := strconv.ParseUint(s, 0, 64); err == nil {
		return Flags(n), nil
	}
	lower, err := libibverbs.ParseDeviceCapFlags(s)
	return Flags(lower), err
}
