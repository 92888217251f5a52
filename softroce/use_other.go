// SPDX-License-Identifier: Apache-2.0

//go:build !(linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x))

package softroce

import (
	"io"
	"net/netip"

	"github.com/verbena-go/verbena/internal/cerr"
)

// Use selects the device for the program. It always fails here, since this
// program cannot call C.
func Use(Config) error { return cerr.Platform("softroce.Use") }

// SetFaults makes f decide what happens to packets. It has no effect here,
// since this program has no device.
func SetFaults(func(Packet) Fault) {}

// SetPort brings the device's port down or up. It always fails here, since this
// program has no device.
func SetPort(bool) error { return cerr.Platform("softroce.SetPort") }

// Remove removes the device. It always fails here, since this program has no
// device.
func Remove() error { return cerr.Platform("softroce.Remove") }

// Insert plugs in a new device. It always fails here, since this program cannot
// have one.
func Insert() error { return cerr.Platform("softroce.Insert") }

// SetAddresses changes the device's addresses. It always fails here, since this
// program has no device.
func SetAddresses([]netip.Addr) error { return cerr.Platform("softroce.SetAddresses") }

// Capture writes sent packets to w. It always fails here, since this program
// has no device.
func Capture(io.Writer) (stop func() error, err error) {
	return func() error { return nil }, cerr.Platform("softroce.Capture")
}

// Card is the place of a device in this process. This program has none.
type Card struct{}

// FindCard returns the card of the device with a name. It always fails here,
// since this program has no device.
func FindCard(string) (*Card, error) { return nil, cerr.Platform("softroce.FindCard") }

// SetPort brings the port of the card's device down or up. It always fails
// here, since this program has no device.
func (*Card) SetPort(bool) error { return cerr.Platform("softroce.Card.SetPort") }

// Remove removes the card's device. It always fails here, since this program
// has no device.
func (*Card) Remove() error { return cerr.Platform("softroce.Card.Remove") }

// Insert plugs in a new device. It always fails here, since this program cannot
// have one.
func (*Card) Insert() error { return cerr.Platform("softroce.Card.Insert") }

// SetAddresses changes the addresses of the card's device. It always fails
// here, since this program has no device.
func (*Card) SetAddresses([]netip.Addr) error { return cerr.Platform("softroce.Card.SetAddresses") }
