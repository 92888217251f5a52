// SPDX-License-Identifier: Apache-2.0

package testdevice

import (
	"cmp"
	"fmt"
	"os"
	"testing"
)

// TakesDevices reports whether this kernel removes a Soft-RoCE device even if
// programs have it open, as it does with most hardware. Linux does so since
// 7.3; before, it waits until all programs have closed the device.
func TakesDevices(t testing.TB) bool {
	t.Helper()
	return LinuxSince(t, 7, 3)
}

// RepeatsPackets reports whether this kernel's Soft-RoCE has an error of Linux
// 6.3 to 7.1: if the queue pair fails during the last packet of a message, it
// may handle the packet again for each posted receive. The kernel crashes if
// the message has several packets.
func RepeatsPackets() bool {
	major, minor, err := linux()
	return err == nil && compare(major, minor, 6, 3) >= 0 && compare(major, minor, 7, 2) < 0
}

// LinuxSince reports whether this kernel is Linux major.minor or a later
// version.
func LinuxSince(t testing.TB, major, minor int) bool {
	t.Helper()
	hasMajor, hasMinor, err := linux()
	if err != nil {
		t.Fatal(err)
	}
	return compare(hasMajor, hasMinor, major, minor) >= 0
}

func compare(aMajor, aMinor, bMajor, bMinor int) int {
	return cmp.Or(cmp.Compare(aMajor, bMajor), cmp.Compare(aMinor, bMinor))
}

// linux returns this kernel's version.
func linux() (major, minor int, err error) {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return 0, 0, err
	}
	if _, err := fmt.Sscanf(string(release), "%d.%d", &major, &minor); err != nil {
		return 0, 0, fmt.Errorf("parse the kernel's release %q: %w", release, err)
	}
	return major, minor, nil
}
