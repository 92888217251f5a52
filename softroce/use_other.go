// SPDX-License-Identifier: Apache-2.0

//go:build !(linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x))

package softroce

import (
	"io"
	"net/netip"

	"github.com/verbena-go/verbena/internal/cerr"
)

// Use makes the device the program's. This program cannot call C, and has none.
func Use(Config) error { return cerr.Platform("softroce.Use") }

// SetFaults makes f say what happens to packets. This program has none.
func SetFaults(func(Packet) Fault) {}

// SetPort brings the device's port down or up. This program has no device.
func SetPort(bool) error { return cerr.Platform("softroce.SetPort") }

// Remove pulls the device out. This program has none.
func Remove() error { return cerr.Platform("softroce.Remove") }

// Insert plugs in another device. This program can have none.
func Insert() error { return cerr.Platform("softroce.Insert") }

// SetAddresses changes the device's addresses. This program has no device.
func SetAddresses([]netip.Addr) error { return cerr.Platform("softroce.SetAddresses") }

// Capture writes all packets to w. This program has none.
func Capture(io.Writer) (stop func() error, err error) {
	return func() error { return nil }, cerr.Platform("softroce.Capture")
}
