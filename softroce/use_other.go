// SPDX-License-Identifier: Apache-2.0

//go:build !(linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x))

package softroce

import (
	"io"
	"net/netip"

	"github.com/verbena-go/verbena/internal/cerr"
)

// Use selects the device for the program. It fails, as this program cannot call
// C.
func Use(Config) error { return cerr.Platform("softroce.Use") }

// SetFaults makes f decide the fate of packets. It has no effect here, as this
// program has no device.
func SetFaults(func(Packet) Fault) {}

// SetPort brings the device's port down or up. It fails, as this program has no
// device.
func SetPort(bool) error { return cerr.Platform("softroce.SetPort") }

// Remove pulls the device out. It fails, as this program has no device.
func Remove() error { return cerr.Platform("softroce.Remove") }

// Insert plugs in another device. It fails, as this program cannot have one.
func Insert() error { return cerr.Platform("softroce.Insert") }

// SetAddresses changes the device's addresses. It fails, as this program has no
// device.
func SetAddresses([]netip.Addr) error { return cerr.Platform("softroce.SetAddresses") }

// Capture writes all packets to w. It fails, as this program has no device.
func Capture(io.Writer) (stop func() error, err error) {
	return func() error { return nil }, cerr.Platform("softroce.Capture")
}
