// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package rsocket

// show always fails, as this system has no connections.
func show([]byte, bool, func(fd uintptr) bool) (used int, done bool, err error) {
	return 0, false, errNoDescriptor
}
