// SPDX-License-Identifier: Apache-2.0

package ibverbs

// Registered returns how many C objects are known by their address.
func Registered() int {
	registry.Lock()
	defer registry.Unlock()
	return len(registry.objects)
}

// FD returns the descriptor that C reads the channel's events from.
func (ch *CompChannel) FD() int32 { return ch.raw.Fd }

// UnlessRemoved is what a Close does with the result of C.
func (d *Device) UnlessRemoved(err error) error { return d.unlessRemoved(err) }
